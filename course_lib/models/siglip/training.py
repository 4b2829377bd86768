"""One training step, the same for every tower: forward, backward, AdamW."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["adamw", "train_step"]


def adamw(tower: nn.Module, lr: float = 1e-4, weight_decay: float = 0.01) -> torch.optim.AdamW:
    """Two more numbers a parameter, of its own type. On a GPU one kernel steps many parameters."""
    fused = next(tower.parameters()).is_cuda
    return torch.optim.AdamW(tower.parameters(), lr=lr, weight_decay=weight_decay, fused=fused)


def train_step(tower: nn.Module, optimizer: torch.optim.Optimizer, patches, lengths, wanted) -> torch.Tensor:
    """Towards `wanted` (B, width), by the mean square of the difference; gives that loss, before the step.

    The loss stays on the device: who reads it waits. Gradients are given up at the end, so their memory is free again.
    """
    loss = F.mse_loss(tower(patches, lengths).float(), wanted.float())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()
