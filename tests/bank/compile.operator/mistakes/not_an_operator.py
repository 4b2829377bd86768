"""A function of torch operators."""

import torch

KILLED_BY = "contiguous"


def make_operator(name):
    def gate(x, y):
        return (x * torch.sigmoid(y)).contiguous()

    return gate
