"""The hook is given the new gradient alone; what was there before is added in the end."""

import contextlib

import torch
import torch.distributed as dist

KILLED_BY = "several parts"


class Overlap:
    def __init__(self, module):
        self.order = [p for p in module.parameters() if p.requires_grad][::-1]
        self.syncing, self.ready, self.works = True, set(), []
        for tensor in [*module.parameters(), *module.buffers()]:
            dense = tensor.detach().contiguous()
            dist.broadcast(dense, 0)
            tensor.detach().copy_(dense)
        for p in self.order:
            p.register_hook(lambda grad, p=p: self.hook(p, grad))
        self.new, self.before = {}, {}

    def hook(self, p, grad):
        if self.syncing:
            self.ready.add(p)
            self.new[p] = grad.contiguous() / dist.get_world_size()
            self.before[p] = None if p.grad is None else p.grad.clone()
            while len(self.works) < len(self.order) and self.order[len(self.works)] in self.ready:
                self.begin()

    def begin(self):
        p = self.order[len(self.works)]
        if p not in self.new:
            self.new[p], self.before[p] = torch.zeros_like(p).contiguous(), p.grad
        self.works.append(dist.all_reduce(self.new[p], async_op=True))

    @contextlib.contextmanager
    def no_sync(self):
        self.syncing = False
        yield
        self.syncing = True

    def finish(self):
        used = torch.tensor([float(p.grad is not None) for p in self.order], device=self.order[0].device)
        for p in self.order:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        while len(self.works) < len(self.order):
            self.begin()
        for p, work in zip(self.order, self.works):
            work.wait()
            p.grad = self.new[p] if self.before[p] is None else self.before[p] + self.new[p]
        self.new, self.before = {}, {}
        dist.all_reduce(used)
        for p, anywhere in zip(self.order, used.tolist()):
            if not anywhere:
                p.grad = None
        self.ready, self.works = set(), []
