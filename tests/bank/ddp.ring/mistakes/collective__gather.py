"""all_gather, then a sum."""

import torch
import torch.distributed as dist

KILLED_BY = "three ranks"


def ring_all_reduce(buffer):
    everything = [torch.empty_like(buffer) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, buffer)
    total = everything[0]
    for one in everything[1:]:
        total = total + one
    buffer.copy_(total)
