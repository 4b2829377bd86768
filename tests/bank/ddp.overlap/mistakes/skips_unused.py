"""Gradients travel in the order in which they come, and what does not come does not travel."""

import contextlib

import torch
import torch.distributed as dist

KILLED_BY = "used on one rank only"


class Overlap:
    def __init__(self, module):
        self.order = [p for p in module.parameters() if p.requires_grad][::-1]
        self.syncing, self.ready, self.works = True, set(), []
        for tensor in [*module.parameters(), *module.buffers()]:
            dense = tensor.detach().contiguous()
            dist.broadcast(dense, 0)
            tensor.detach().copy_(dense)
        for p in self.order:
            p.register_post_accumulate_grad_hook(self.hook)

    def hook(self, p):
        if self.syncing:
            p.grad = p.grad.contiguous() / dist.get_world_size()
            self.works.append(dist.all_reduce(p.grad, async_op=True))

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
        for work in self.works:
            work.wait()
        self.ready, self.works = set(), []
