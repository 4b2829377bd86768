"""Parameters alone are broadcast."""

import contextlib

import torch
import torch.distributed as dist

KILLED_BY = "numbers that are no parameters"


class Overlap:
    def __init__(self, module):
        self.order = [p for p in module.parameters() if p.requires_grad][::-1]
        self.syncing, self.ready, self.works = True, set(), []
        for tensor in list(module.parameters()):
            dense = tensor.detach().contiguous()
            dist.broadcast(dense, 0)
            tensor.detach().copy_(dense)
        for p in self.order:
            p.register_post_accumulate_grad_hook(self.hook)

    def hook(self, p):
        if self.syncing:
            self.ready.add(p)
            while len(self.works) < len(self.order) and self.order[len(self.works)] in self.ready:
                self.begin()

    def begin(self):
        p = self.order[len(self.works)]
        p.grad = p.grad.contiguous() / dist.get_world_size()
        self.works.append(dist.all_reduce(p.grad, async_op=True))

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
        for work in self.works:
            work.wait()
        dist.all_reduce(used)
        for p, anywhere in zip(self.order, used.tolist()):
            if not anywhere:
                p.grad = None
        self.ready, self.works = set(), []
