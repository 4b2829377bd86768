"""What the three towers share: from patches to the first block, and from the last block to one vector an image.

Padding is zeros from here on, whatever it was: a weight of 0 hides no NaN, and the gradient of `embed` is a product
over all rows, padding too. So what a padding row holds is finite everywhere, and nothing that is real reads it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from course_lib.models.vision import VisionTower

__all__ = ["Framed", "named_gradients", "packed", "real_patches", "unpacked"]


def real_patches(lengths: torch.Tensor, patches: int) -> torch.Tensor:
    """(B,) -> (B, patches), true where a patch is no padding."""
    return torch.arange(patches, device=lengths.device) < lengths[:, None]


class Framed(VisionTower):
    """Called with patches (B, N, numbers a patch) and lengths (B,) of integers from 1 to N, gives (B, width)."""

    def embedded(self, patches: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """(B, N, numbers a patch), (B, N) -> (B, N, width)."""
        return self.embed(patches.masked_fill(~real[..., None], 0.0)) + self.places

    @staticmethod
    def pooled(x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """(B, N, width), (B, N) -> (B, width): the mean over real patches, as a product, which reads x once."""
        sums = real[:, None].to(x.dtype) @ x  # (B, 1, width)
        return sums[:, 0] / real.sum(-1, keepdim=True)


def unpacked(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With q, k and v apart: "attention.qkv.weight" becomes views of it, "attention.q.weight" and so on."""
    found = {}
    for name, tensor in named.items():
        before, at, after = name.rpartition("attention.qkv.")
        if at:
            found |= {f"{before}attention.{part}.{after}": t for part, t in zip("qkv", tensor.chunk(3))}
        else:
            found[name] = tensor
    return found


def packed(named: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The other way, a copy; what is not there in all three parts stays as it is."""
    found = dict(named)
    for name in named:
        before, at, after = name.rpartition("attention.q.")
        parts = [f"{before}attention.{part}.{after}" for part in "qkv"]
        if at and all(part in found for part in parts):
            found[f"{before}attention.qkv.{after}"] = torch.cat([found.pop(part) for part in parts])
    return found


def named_gradients(tower: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Of every parameter that has one, by the names of the naive tower."""
    return unpacked({name: p.grad for name, p in tower.named_parameters() if p.grad is not None})
