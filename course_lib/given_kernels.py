"""Kernels that lessons 02 and 03 hand out: each stands for a kernel of your own, to be made known to torch.

They compute with NumPy, so neither torch.compile nor the dispatcher nor autograd can look into them. Each writes into
contiguous memory that the caller gives. `kernel.wrote` is None, or a list that keeps a copy of what the kernel writes.
"""

from __future__ import annotations

import numpy as np
import torch


def gate_into(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    """out = x * sigmoid(y)."""
    if not out.is_contiguous():
        raise ValueError(f"gate_into writes contiguous memory; out has strides {tuple(out.stride())}")
    with np.errstate(over="ignore"):
        np.copyto(out.detach().numpy(), x.detach().numpy() / (1 + np.exp(-y.detach().numpy())))
    if gate_into.wrote is not None:
        gate_into.wrote.append(out.detach().clone())


def cap_into(x: torch.Tensor, limit: float, out: torch.Tensor) -> None:
    """out = limit * tanh(x / limit)."""
    if not out.is_contiguous():
        raise ValueError(f"cap_into writes contiguous memory; out has strides {tuple(out.stride())}")
    np.copyto(out.detach().numpy(), limit * np.tanh(x.detach().numpy() / limit))
    if cap_into.wrote is not None:
        cap_into.wrote.append(out.detach().clone())


gate_into.wrote = cap_into.wrote = None
