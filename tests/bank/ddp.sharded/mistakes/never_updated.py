"""The optimizer is given copies."""

import torch
import torch.distributed as dist

reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

KILLED_BY = "two ranks"


class Sharded:
    def __init__(self, module, make):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                dense = tensor.contiguous()
                dist.broadcast(dense, 0)
                tensor.copy_(dense)
        self.groups, pieces = [], []
        trained = [p for p in module.parameters() if p.requires_grad]
        for dtype in sorted({p.dtype for p in trained}, key=str):
            params = [p for p in trained if p.dtype == dtype]
            size = -(-sum(p.numel() for p in params) // ranks)
            weights = torch.zeros(size * ranks, dtype=dtype, device=params[0].device)
            at, own = 0, []
            for p in params:
                place = slice(at, at + p.numel())
                weights[place] = p.detach().reshape(-1)
                p.data = weights[place].view(p.shape)
                low, high = max(at, rank * size), min(at + p.numel(), (rank + 1) * size)
                piece = torch.nn.Parameter(weights[low:high].clone()) if low < high else None
                own.append((p, place, piece, slice(low - rank * size, high - rank * size)))
                at += p.numel()
            self.groups.append((weights, weights[rank * size : (rank + 1) * size], own))
            pieces += [piece for _, _, piece, _ in own if piece is not None]
        self.optimizer = make(pieces) if pieces else None

    def finish(self):
        for weights, mine, own in self.groups:
            grads = torch.zeros_like(weights)
            used = torch.zeros(len(own), device=weights.device)
            for number, (p, place, _, _) in enumerate(own):
                if p.grad is not None:
                    grads[place] = p.grad.reshape(-1)
                    used[number] = 1
                p.grad = None
            part = torch.empty_like(mine)
            grads /= dist.get_world_size()
            reduce_scatter(part, grads)
            dist.all_reduce(used)
            for (_, _, piece, cut), anywhere in zip(own, used.tolist()):
                if piece is not None:
                    piece.grad = part[cut] if anywhere else None

    def step(self):
        if self.optimizer:
            self.optimizer.step()
        for weights, mine, _ in self.groups:
            all_gather(weights, mine.clone())

    def zero_grad(self):
        for _, _, own in self.groups:
            for p, _, piece, _ in own:
                p.grad = None
                if piece is not None:
                    piece.grad = None
