"""A buffer that is kept, with a flag for each parameter at its end; p.grad becomes a view."""

import torch
import torch.distributed as dist


class Flat:
    def __init__(self, module):
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dense = tensor.contiguous()
                dist.broadcast(dense, 0)
                tensor.copy_(dense)
        self.groups = {}
        for p in module.parameters():
            if p.requires_grad:
                self.groups.setdefault(p.dtype, []).append(p)
        self.buffers = {
            dtype: torch.zeros(sum(p.numel() + 1 for p in params), dtype=dtype, device=params[0].device)
            for dtype, params in self.groups.items()
        }

    def finish(self):
        for dtype, params in self.groups.items():
            buffer, at = self.buffers[dtype], 0
            flags = buffer[-len(params) :]
            fresh = torch.zeros_like(buffer)
            for number, p in enumerate(params):
                if p.grad is not None:
                    fresh[at : at + p.numel()] = p.grad.reshape(-1)
                    fresh[len(buffer) - len(params) + number] = 1
                at += p.numel()
            buffer.copy_(fresh / dist.get_world_size())
            dist.all_reduce(buffer)
            at = 0
            for p, flag in zip(params, flags.tolist()):
                p.grad = buffer[at : at + p.numel()].view(p.shape) if flag else None
                at += p.numel()
