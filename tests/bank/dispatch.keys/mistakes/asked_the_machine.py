"""Asks torch what it does."""

import torch

KILLED_BY = "no gradient required"


def keys(tensors, around):
    found = torch._C._dispatch_tls_local_include_set()
    for tensor in tensors:
        made = torch.ones(2, device=tensor["device"])
        found = found | torch._C._dispatch_keys(made)
    found = found - torch._C._dispatch_tls_local_exclude_set()
    names = []
    while (first := found.highestPriorityTypeId()).name != "Undefined":
        names.append(first.name)
        found = found.remove(first)
    return names
