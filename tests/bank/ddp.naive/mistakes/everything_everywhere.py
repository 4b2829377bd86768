"""Every rank gathers everybody's gradients, and takes the mean by itself."""

import torch
import torch.distributed as dist

KILLED_BY = "large layers"


class Naive:
    def __init__(self, module):
        self.params = [p for p in module.parameters() if p.requires_grad]
        for tensor in [*module.parameters(), *module.buffers()]:
            dense = tensor.detach().contiguous()
            dist.broadcast(dense, 0)
            tensor.detach().copy_(dense)

    def finish(self):
        used = torch.tensor([float(p.grad is not None) for p in self.params], device=self.params[0].device)
        dist.all_reduce(used)
        for p, anywhere in zip(self.params, used.tolist()):
            if anywhere:
                mine = torch.zeros_like(p).contiguous() if p.grad is None else p.grad.contiguous()
                all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
                dist.all_gather(all_of_them, mine)
                p.grad = sum(all_of_them) / dist.get_world_size()
