"""What eager torch keeps for the backward pass, operator by operator; a mistake changes one keyword.

A tensor is its name here: "x", or the number of the layer that made it.
"""

import math

ITEM = {"fp32": 4, "bf16": 2, "fp16": 2}
OF_INPUT = ("gelu", "silu")
OF_RESULT = ("relu", "tanh", "sigmoid", "exp", "softmax")


def kept(
    v, of_input=OF_INPUT, of_result=OF_RESULT, both=(), item=None, once=True, x_counts=False, weights=False,
    statistics=8, mask=1.0, frozen=True, unasked=True, sums=False, factors="crosswise", linear="input", rows=None,
    stops=False, frozen_keeps=False,
) -> list[int]:  # fmt: skip
    """Bytes of every layer.

    of_input, of_result, both: the activations that keep their input, their result, or both. once: a tensor counts only
    where it is kept first. x_counts: x counts too. statistics: bytes a row of a layer norm. mask: bytes an element of a
    dropout; None: as many as an element of x. frozen, unasked: whether it matters that a weight is frozen, or that no
    gradient is asked for. rows: the leading dimensions that count; None: all. stops: a frozen layer ends the way back.
    frozen_keeps: it keeps its input where a gradient passes it.
    """
    size = item or ITEM[v["dtype"]]
    shapes = {"x": tuple(v["shape"])}
    needs = {"x": v["x_grad"] or not unasked}
    counted = set() if x_counts else {"x"}
    now, answer = "x", []

    def count(name) -> int:
        if (once and name in counted) or (name == "x" and not x_counts):
            return 0
        counted.add(name)
        return _elements(shapes[name], rows) * size

    for number, layer in enumerate(v["layers"]):
        op, shape, asked = layer["op"], shapes[now], needs[now]
        shapes[number], total = shape, 0
        if op == "linear":
            shapes[number] = (*shape[:-1], layer["out"])
            trained = not (layer["frozen"] and frozen)
            keeps = {"input": (now,), "result": (number,), "both": (now, number), "asked": (now,) * asked}[linear]
            total += sum(map(count, keeps)) if trained or (frozen_keeps and asked) else 0
            total += shape[-1] * layer["out"] * size * weights
            asked = trained or (asked and not stops)
        elif op == "layer_norm":
            total += count(now) + _elements((*shape[:-1], 1), rows) * statistics
            total += shape[-1] * size * weights
            asked = True
        elif op == "dropout":
            total += math.ceil(_elements(shape, rows) * (size if mask is None else mask)) if asked else 0
        elif op == "add":
            other = layer["from"]
            total += (count(now) + count(other)) * sums
            asked = asked or needs[other]
        elif op == "mul":
            other = layer["from"]
            either = asked or needs[other]
            pairs = {
                "crosswise": ((now, needs[other]), (other, asked)),
                "swapped": ((now, asked), (other, needs[other])),
                "both": ((now, either), (other, either)),
                "own": ((now, either),),
            }
            total += sum(count(name) for name, wanted in pairs[factors] if wanted)
            asked = asked or needs[other]
        elif asked:
            total += count(now) if op in (*of_input, *both) else 0
            total += count(number) if op in (*of_result, *both) else 0
        needs[number] = asked
        now = number
        answer.append(total)
    return answer


def _elements(shape, rows) -> int:
    if rows and len(shape) > 2:
        shape = shape[-2:] if rows == "last two" else (shape[0], shape[-1])
    return math.prod(shape)
