"""Zeros for everything that has no gradient."""

import torch
import torch.distributed as dist

KILLED_BY = "a layer that nobody uses"


class Naive:
    def __init__(self, module):
        self.module = module
        self.params = [p for p in module.parameters() if p.requires_grad]
        for tensor in [*module.parameters(), *module.buffers()]:
            dense = tensor.detach().contiguous()
            dist.broadcast(dense, 0)
            tensor.detach().copy_(dense)

    def finish(self):
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad = p.grad.contiguous()
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
