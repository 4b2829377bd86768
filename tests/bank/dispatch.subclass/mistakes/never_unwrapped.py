"""Shows every operator, and calls it as it came."""

import torch

KILLED_BY = "numbers"


class Scaled(torch.Tensor):
    @staticmethod
    def __new__(cls, held, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=held.device
        )

    def __init__(self, held, scale):
        self.held = held
        self.scale = scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))
