"""What nobody used gets zeros."""

import torch
import torch.distributed as dist

KILLED_BY = "a layer that nobody uses"


class Sharded:
    def __init__(self, module, make):
        self.params = [p for p in module.parameters() if p.requires_grad]
        for tensor in [*module.parameters(), *module.buffers()]:
            dense = tensor.detach().contiguous()
            dist.broadcast(dense, 0)
            tensor.detach().copy_(dense)
        ranks, held = dist.get_world_size(), [0] * dist.get_world_size()
        self.owner = {}
        for p in sorted(self.params, key=lambda p: -p.numel()):
            self.owner[p] = held.index(min(held))
            held[self.owner[p]] += p.numel()
        self.mine = [p for p in self.params if self.owner[p] == dist.get_rank()]
        self.optimizer = make(self.mine) if self.mine else None

    def finish(self):
        used = torch.tensor([float(p.grad is not None) for p in self.params], device=self.params[0].device)
        for p in self.params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            p.grad = p.grad.contiguous() / dist.get_world_size()
            dist.reduce(p.grad, self.owner[p])
        dist.all_reduce(used)
        for p, anywhere in zip(self.params, used.tolist()):
            if self.owner[p] != dist.get_rank():
                p.grad = None

    def step(self):
        if self.optimizer:
            self.optimizer.step()
        for p in self.params:
            dense = p.detach().contiguous()
            dist.broadcast(dense, self.owner[p])
            p.detach().copy_(dense)

    def zero_grad(self):
        for p in self.params:
            p.grad = None
