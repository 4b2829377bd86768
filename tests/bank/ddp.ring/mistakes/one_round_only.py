"""One step with the whole buffer."""

import torch
import torch.distributed as dist

KILLED_BY = "three ranks"


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    came = torch.empty_like(buffer)
    works = [dist.isend(buffer, (rank + 1) % ranks), dist.irecv(came, (rank - 1) % ranks)]
    for work in works:
        work.wait()
    buffer += came
