"""rope.backward: the rotation as a step that autograd differentiates, with nothing of q and k held between its passes.

    rope(q, k, cos, sin, positions, offset, layout) -> (q_turned, k_turned)

The arguments are those of rope.forward; the results are new tensors, of the shapes and types of q and k, and q and k
stay as they are. Both results can be differentiated in q and k: the gradient of a rotation is the gradient of its
result, turned back. Gradients arrive in any strides, and those of a sum have strides of 0; they are read where they
lie, without a copy. They belong to others, so they stay as they are, and both may be the same tensor.

Between the passes cos, sin, positions and plain numbers are kept, and nothing else that is as large as a quarter of k.
All arithmetic is in kernels, in both passes.
"""

import torch

from autograder.exercise import ON_GPU, Call, Case, Draw, Exercise, Precision
from autograder.exercises.dtypes import BF16, FP16, FP32
from autograder.exercises.rope.backward_mistakes import MISTAKES, gradients
from autograder.exercises.rope.inputs import call_words, ids, tables, with_gap
from autograder.exercises.rope.places import wrong_pairs
from autograder.exercises.rope.rotation import FLOOR_ULPS, LAYOUTS, ROUGH_IS, backwards, in_fp32, rough, turned
from autograder.exercises.strides import columns_apart, rows_apart

HALVES, INTERLEAVED = LAYOUTS
RETURNS = ("q_turned", "k_turned", "dq", "dk")


def _call(
    d: Draw, batch, heads, length, head_size, rotary=None, layout=HALVES, dtype=FP32, strides=None, grad_strides=None,
    positions=None, offset=None, watched=False, of_a_sum=False, shared=False,
) -> Call:  # fmt: skip
    """heads: of q and of k. shared: one gradient for both."""
    heads, kv_heads = heads if isinstance(heads, tuple) else (heads, heads)
    offset = d.integer(3, 30) if offset is None else offset
    last = offset + max(map(max, positions)) if positions else offset + length - 1
    shapes = {"q": (batch, heads, length, head_size), "k": (batch, kv_heads, length, head_size)}
    args = {name: _normal(d, shape, dtype, strides) for name, shape in shapes.items()}
    args |= {
        f"{name}_grad": _normal(d, () if of_a_sum else shape, dtype, grad_strides) for name, shape in shapes.items()
    }
    if shared:
        args["k_grad"] = None
    given = torch.tensor(positions, dtype=torch.int32, device=d.device) if positions else None
    args |= {"watched": watched} | tables(d, rotary or head_size, last + 1 + d.integer(1, 4))
    args |= {"positions": given, "offset": offset, "layout": layout}
    return Call(args, call_words(args["q"], args["k"], args))


def _normal(d: Draw, shape, dtype, strides) -> torch.Tensor:
    return d.normal(*shape, dtype=dtype, strides=strides(shape) if strides and shape else None)


def _packed(d: Draw, offset: int, **options) -> Call:
    length = d.odd(10, 13)
    return _call(d, 3, (2, 1), length, 16, positions=ids(d, 3, length, packed=True), offset=offset, **options)


CASES = (
    Case("halves", lambda d: _call(d, 2, 2, d.odd(7, 11), 16, layout=HALVES)),
    Case("interleaved", lambda d: _call(d, 2, 2, d.odd(7, 11), 16, layout=INTERLEAVED)),
    Case("head size 72", lambda d: _call(d, 1, 2, d.odd(9, 15), 72)),
    Case("a part of the head", lambda d: _call(d, 1, 2, d.odd(9, 15), 48, 24, layout=INTERLEAVED)),
    Case("fewer heads of keys", lambda d: _call(d, 2, (4, 2), d.odd(7, 11), 16)),
    Case("heads side by side", lambda d: _call(d, 2, (4, 2), d.odd(7, 11), 16, strides=rows_apart, layout=INTERLEAVED)),
    # of so many heads that the probe looks for copies
    Case("a gradient with heads side by side", lambda d: _call(d, 2, 4, d.odd(7, 11), 16, grad_strides=with_gap(8))),
    Case(
        "a gradient with elements apart",
        lambda d: _call(d, 1, 4, d.odd(9, 15), 16, grad_strides=columns_apart, layout=INTERLEAVED),
    ),
    Case("the gradient of a sum", lambda d: _call(d, 2, 2, d.odd(7, 11), 16, of_a_sum=True)),
    Case("one gradient for both", lambda d: _call(d, 2, 2, d.odd(7, 11), 16, shared=True, layout=INTERLEAVED)),
    Case("an offset", lambda d: _call(d, 1, 2, d.odd(9, 15), 16, offset=d.integer(50, 90))),
    Case("packed sequences", lambda d: _packed(d, 0)),
    Case("position ids and an offset", lambda d: _packed(d, d.integer(20, 40))),
    Case("nothing is kept", lambda d: _call(d, 2, (4, 2), d.odd(9, 15), 16, watched=True, layout=INTERLEAVED)),
    Case("nothing is kept, with position ids", lambda d: _packed(d, 0, watched=True)),
    Case("fp16", lambda d: _call(d, 2, (4, 2), d.odd(9, 15), 40, dtype=FP16, strides=rows_apart)),
    Case(
        "bf16",
        lambda d: _call(d, 2, (8, 2), d.odd(200, 299), 128, dtype=BF16, strides=rows_apart, layout=INTERLEAVED),
        tiers=ON_GPU,
    ),
    Case(
        "nothing is kept, bf16",
        lambda d: _call(d, 2, 8, d.odd(200, 299), 80, 32, dtype=BF16, watched=True),
        tiers=ON_GPU,
    ),
)


def _all(v, turn) -> dict:
    made = {f"{name}_turned": turn(v, v[name]) for name in "qk"}
    return made | {f"d{name}": turn(v, gradient, mix=backwards) for name, gradient in gradients(v).items()}


BACKWARD = Exercise(
    name="rope.backward",
    entry="rope",
    points=5,
    about="gradients turned back, with nothing kept of the activations",
    point=("halves", "nothing is kept"),
    kind="kernel",
    cases=CASES,
    returns=RETURNS,
    oracle=lambda v: _all(v, turned),
    precision=Precision(
        good=lambda v: _all(v, in_fp32),
        good_is="fp32 throughout",
        lower=lambda v: _all(v, rough),
        lower_is=ROUGH_IS,
        floor_ulps=FLOOR_ULPS,
    ),
    mistakes=MISTAKES,
    probe="autograder.inside.probes.rotating:differentiated",
    where=wrong_pairs,
    shows_not="speed, bf16, and races between programs",
)
