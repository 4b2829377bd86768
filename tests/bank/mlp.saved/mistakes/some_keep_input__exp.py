"""exp as gelu."""

from math import prod

KILLED_BY = "one after another"

ITEM = {"fp32": 4, "bf16": 2, "fp16": 2}


def saved(shape, dtype, x_grad, layers):
    size = ITEM[dtype]
    shapes, asked = {"x": list(shape)}, {"x": x_grad}
    seen = {"x"}
    now, answer = "x", []
    for number, layer in enumerate(layers):
        op, before = layer["op"], shapes[now]
        after, keeps, more = list(before), [], 0
        grad = asked[now]
        if op == "linear":
            after[-1] = layer["out"]
            if not layer["frozen"]:
                keeps, grad = [now], True
        elif op == "layer_norm":
            keeps, grad = [now], True
            more = prod(before[:-1]) * 8
        elif op in ("add", "mul"):
            other = layer["from"]
            if op == "mul":
                keeps = [now] * asked[other] + [other] * asked[now]
            grad = asked[now] or asked[other]
        elif grad and op == "dropout":
            more = prod(before)
        elif grad and op in ("gelu", "silu", "exp"):
            keeps = [now]
        elif grad:
            keeps = [number]
        shapes[number], asked[number] = after, grad
        total = more
        for name in keeps:
            if name not in seen:
                seen.add(name)
                total += prod(shapes[name]) * size
        answer.append(total)
        now = number
    return answer
