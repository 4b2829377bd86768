"""How inputs of attention are drawn: lengths, heads, layouts, scores that lie high or low."""

import torch

from autograder.exercise import Call, Draw
from autograder.exercises.dtypes import DTYPE_NAMES, FP16, FP32, significant
from autograder.exercises.flash.attention import forward_truth, lengths


def wide(draw: Draw) -> torch.dtype:
    """fp32 where there are no tensor cores to use, the interpreter; fp16 on a GPU."""
    return FP32 if draw.tier == "interpreter" else FP16


TF32_OR_E4M3_IS = "rounded to fewer bits: fp32 to TF32, fp16 and bf16 to E4M3"
# Half a unit: outputs are sums of many products, and with two units products in fp8 would pass for bf16.
FLOOR_ULPS = 0.5


def tf32_or_e4m3(x: torch.Tensor) -> torch.Tensor:
    """As dtypes.next_format_down, but bf16 becomes E4M3 and not E5M2: E4M3 is nearer to bf16, and as fast."""
    return significant(x, 11 if x.dtype == FP32 else 4).to(x.dtype)


def a_scale(draw: Draw, head_size: int) -> float:
    """A scale near 1 / sqrt(D) that is clearly neither 1 / sqrt(D) nor 1/8."""
    scale = 0.125
    while abs(scale / 0.125 - 1) < 0.2:
        scale = head_size**-0.5 * draw.choice([draw.number(0.55, 0.8), draw.number(1.25, 1.7)])
    return round(scale, 5)


def on_a_grid(draw: Draw, *shape: int) -> torch.Tensor:
    """Normal values in steps of 1/8, at most 2: their products add up without rounding."""
    return (draw.normal(*shape) * 8).round().clamp(-16, 16) / 8


BEHIND = "NaN behind the lengths"
# Two calls of one grading run whose shapes are equal, and nothing else: what is kept by shape is wrong in the second.
FIRST, AGAIN = "sizes for the first time", "the same sizes again"
KEPT_SAYS = (
    "Right when sizes come for the first time, wrong when the same sizes come again: something of the first call was "
    "kept and used again. Shapes alone say nothing of the scale, the lengths, the strides or the addresses of a call."
)


def kept_by_shape(e) -> bool:
    """The second of two calls with the same shapes is wrong, and nothing else."""
    return e.failed_only(AGAIN) and e.passed(FIRST)


def tensors(draw: Draw, batch, heads, n_q, n_k, head_size, dtype=None, offset=0.0, spread=1.0, mean_v=0.0) -> dict:
    """q, k and v; heads: a number, or (heads, heads of keys).

    offset: is added to all products of q and k. spread: q and k are multiplied with it.
    """
    heads, kv_heads = heads if isinstance(heads, tuple) else (heads, heads)
    made = {"q": (batch, heads, n_q, head_size), "k": (batch, kv_heads, n_k, head_size)}
    normal = on_a_grid if offset else Draw.normal
    made = {name: normal(draw, *shape) * spread for name, shape in made.items()}
    if offset:
        made["q"][..., -1], made["k"][..., -1] = 16.0, round(offset / 16 * 8) / 8
    made["v"] = draw.normal(batch, kv_heads, n_k, head_size, mean=mean_v)
    dtype = draw.type_of(dtype or wide(draw))
    return {name: x.to(dtype).to(draw.device) for name, x in made.items()}


def laid_out(draw: Draw, args: dict, layout: dict) -> dict:
    """The tensors that `layout` names, with the strides that its functions give for their shapes."""
    return args | {name: draw.lay_out(args[name], strides(args[name].shape)) for name, strides in layout.items()}


def empty_like(draw: Draw, x: torch.Tensor, strides=None) -> torch.Tensor:
    return draw.empty(*x.shape, dtype=x.dtype, strides=strides(x.shape) if strides else None)


def settings(draw: Draw, args: dict, causal=False, scale=None, k_lengths=None) -> dict:
    scale = a_scale(draw, args["q"].shape[-1]) if scale is None else scale
    given = None if k_lengths is None else torch.tensor(k_lengths, dtype=torch.int32, device=draw.device)
    return {"causal": causal, "scale": scale, "k_lengths": given}


def lse_of(draw: Draw, q: torch.Tensor) -> torch.Tensor:
    return draw.empty(*q.shape[:3])


def with_results(draw: Draw, args: dict) -> dict:
    """`out` and `lse` as a forward pass would have stored them."""
    truth = forward_truth(args)
    return {"out": truth["out"].to(args["q"].dtype), "lse": truth["lse"].float()}


def with_nan_behind(made: Call) -> Call:
    """The same call, but keys and values behind the length of their sequence are NaN."""
    behind = torch.arange(made.args["k"].shape[2], device=made.args["k"].device)[:, None] >= lengths(made.args)
    for name in "kv":
        made.args[name].masked_fill_(behind, float("nan"))
    return made


def in_words(args: dict) -> str:
    """What a report says about a call."""
    (batch, heads, n_q, head_size), (kv_heads, n_k) = args["q"].shape, args["k"].shape[1:3]
    shared = f" on {kv_heads}" if kv_heads != heads else ""
    lengths = args.get("k_lengths")
    return (
        f"batch {batch}, heads {heads}{shared}, {n_q} queries, {n_k} keys, head size {head_size}, "
        f"{DTYPE_NAMES[args['q'].dtype]}{', causal' if args['causal'] else ''}"
        + (f", key lengths {[int(n) for n in lengths]}" if lengths is not None else "")
    )


def call(args: dict, order: str) -> Call:
    """The arguments in the order of the entry point."""
    return Call({name: args[name] for name in order.split()}, in_words(args))
