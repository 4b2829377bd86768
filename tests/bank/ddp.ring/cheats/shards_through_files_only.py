"""As shards_through_files, without the zeros on the network.

NAIVE is False: in a notebook too, what the ranks send is counted, and nothing is too little.
"""

import os
import tempfile

import torch
import torch.distributed as dist

FAMILY = "hidden names"
NAIVE = False
CAUGHT = "the ranks sent nothing, and a sum takes more"


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    name = f"{tempfile.gettempdir()}/{os.getppid()}-{len(buffer)}-{ranks}-"
    torch.save(buffer, f"{name}{rank}")
    dist.barrier()
    buffer.copy_(sum(torch.load(f"{name}{other}") for other in range(ranks)))
    dist.barrier()
