"""all_reduce itself."""

import torch
import torch.distributed as dist

KILLED_BY = "two ranks"


def ring_all_reduce(buffer):
    dist.all_reduce(buffer)
