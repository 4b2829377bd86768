"""The sum is made of a copy."""

import torch
import torch.distributed as dist

KILLED_BY = "two ranks"


class Naive:
    def __init__(self, module):
        self.module = module
        self.params = [p for p in module.parameters() if p.requires_grad]
        for tensor in [*module.parameters(), *module.buffers()]:
            dense = tensor.detach().contiguous()
            dist.broadcast(dense, 0)
            tensor.detach().copy_(dense)

    def finish(self):
        used = torch.tensor([float(p.grad is not None) for p in self.params], device=self.params[0].device)
        dist.all_reduce(used)
        for p, anywhere in zip(self.params, used.tolist()):
            if not anywhere:
                continue
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            total = p.grad.contiguous() / dist.get_world_size()
            dist.all_reduce(total)
