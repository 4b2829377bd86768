"""Torch is asked, with one row: whatever is kept has as many rows as x."""

import math

import torch
from torch.nn import functional as F

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
OPERATORS = {
    **{"gelu": F.gelu, "silu": F.silu, "relu": F.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "exp": torch.exp},
    **{"add": torch.add, "mul": torch.mul, "softmax": lambda x: torch.softmax(x, -1)},
    "dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
}


def saved(shape, dtype, x_grad, layers):
    kind, rows = TYPES[dtype], math.prod(shape[:-1])
    x = torch.zeros(1, shape[-1], dtype=kind, requires_grad=x_grad)
    results, known, alive, answer = {"x": x}, {x.data_ptr()}, [], []
    for number, layer in enumerate(layers):
        op, x, kept = layer["op"], results[number - 1 if number else "x"], []

        def look(t, kept=kept):
            kept.append(t)
            return t

        with torch.autograd.graph.saved_tensors_hooks(look, lambda t: t):
            if op in ("linear", "layer_norm"):
                trained = {"dtype": kind, "requires_grad": not layer.get("frozen")}
                many = layer["out"] if op == "linear" else x.shape[-1]
                weight = torch.zeros(*([many, x.shape[-1]] if op == "linear" else [many]), **trained)
                bias = torch.zeros(many, **trained)
                known |= {weight.data_ptr(), bias.data_ptr()}
                alive += [weight, bias]
                y = F.linear(x, weight, bias) if op == "linear" else F.layer_norm(x, x.shape[-1:], weight, bias)
            else:
                y = OPERATORS[op](x, *([results[layer["from"]]] if "from" in layer else []))
        results[number], total = y, 0
        for t in kept:
            if t.data_ptr() not in known:
                known.add(t.data_ptr())
                statistic = op == "layer_norm" and t.shape != x.shape
                total += rows * t.numel() * (4 if statistic else t.element_size())
        alive += kept
        answer.append(total)
    return answer
