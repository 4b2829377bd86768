"""What the kernels of this unit share in how their inputs are drawn."""

import torch

from autograder.exercise import Draw

FULL, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
SHORT = {FULL: "fp32", HALF: "fp16", BRAIN: "bf16"}
GPU = ("gpu",)


def odd(draw: Draw, low: int, high: int) -> int:
    return 2 * draw.integer(low // 2, high // 2) + 1
