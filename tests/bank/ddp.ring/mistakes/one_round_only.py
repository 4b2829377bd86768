"""One step with the whole buffer."""

import torch
import torch.distributed as dist

KILLED_BY = "three ranks"


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    came = torch.empty_like(buffer)
    operations = [dist.P2POp(dist.isend, buffer, (rank + 1) % ranks), dist.P2POp(dist.irecv, came, (rank - 1) % ranks)]
    works = dist.batch_isend_irecv(operations)
    for work in works:
        work.wait()
    buffer += came
