"""The two halves of an all-reduce, under the names that torch gives them: they changed between 2.11 and 2.13."""

import torch
import torch.distributed as dist

__all__ = ["all_gather", "reduce_scatter"]


def reduce_scatter(mine: torch.Tensor, all_parts: torch.Tensor, op=dist.ReduceOp.SUM, group=None) -> dist.Work:
    """Begin to reduce `all_parts` (N parts side by side) over all ranks; rank r gets the r-th part."""
    begin = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return begin(mine, all_parts, op, group=group, async_op=True)


def all_gather(all_parts: torch.Tensor, mine: torch.Tensor, group=None) -> dist.Work:
    """Begin to put every rank's part side by side; `mine` may be the r-th part of `all_parts`."""
    begin = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return begin(all_parts, mine, group=group, async_op=True)
