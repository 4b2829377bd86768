"""The part is copied into one scratch, which the next step fills while it is still being sent.

NCCL runs what two ranks send each other in one queue, so it wants a batch.
"""

import torch
import torch.distributed as dist

KILLED_BY = "two ranks"
NCCL = False


def ring_all_reduce(buffer):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    parts = list(buffer.tensor_split(ranks))
    scratch, send = torch.empty_like(parts[0]), None
    for step in range(2 * (ranks - 1)):
        mine, theirs = parts[(rank - step) % ranks], parts[(rank - step - 1) % ranks]
        out = scratch[: len(mine)]
        out.copy_(mine)
        if send is not None:
            send.wait()
        send = dist.isend(out, right)
        came = torch.empty_like(theirs)
        dist.irecv(came, left).wait()
        if step < ranks - 1:
            theirs += came
        else:
            theirs.copy_(came)
    send.wait()
