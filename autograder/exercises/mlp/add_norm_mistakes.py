"""How people add and normalise wrongly, forward and backward."""

import torch

from autograder.exercise import Mistake
from autograder.exercises.everywhere import NOT_DIFFERENTIABLE, number_of_gradients
from autograder.exercises.mlp.norm import gradients_given, made, statistics, through
from autograder.judging import tolerance
from course_lib.numerics import error

BLOCKS = (1, 2, 4, 8, 16, 32, 64)
TWO_BYTES = ("fp16", "fp16, many rows", "bf16", "bf16, many rows")
IN_PLACE = ("in place", "in place, strided", "fp16, many rows", "bf16, many rows")


def _with(**changes):
    return lambda v: made(v, **changes)


def _stats(of):
    return _with(stats=of)


def _block(s: torch.Tensor) -> int:
    """What a kernel's block of columns is: the next power of two."""
    return 1 << (s.shape[-1] - 1).bit_length()


# ---- statistics


def _root(variance, v):
    return (variance + v["eps"]).rsqrt()


def _centred(s):
    mean = s.mean(-1, keepdim=True)
    return mean, (s - mean).square().mean(-1, keepdim=True)


def _eps_outside(s, v):
    mean, variance = _centred(s)
    return mean, 1 / (variance.sqrt() + v["eps"])


def _eps_missing(s, v):
    mean, variance = _centred(s)
    return mean, variance.rsqrt()


def _root_missing(s, v):
    mean, variance = _centred(s)
    return mean, 1 / (variance + v["eps"])


def _around_zero(s, v):
    return s.mean(-1, keepdim=True), _root(s.square().mean(-1, keepdim=True), v)


def _one_less(s, v):
    mean, variance = _centred(s)
    return mean, _root(variance * s.shape[-1] / (s.shape[-1] - 1), v)


def _padded(s, v):
    """Lanes beyond the row hold 0, and 0 - mean is counted."""
    mean, variance = _centred(s)
    more = _block(s) - s.shape[-1]
    return mean, _root(variance + more * mean.square() / s.shape[-1], v)


def _by_block(s, v, which):
    share = s.shape[-1] / _block(s)
    mean = s.mean(-1, keepdim=True) * (share if "mean" in which else 1.0)
    variance = (s - mean).square().mean(-1, keepdim=True)
    return mean, _root(variance * (share if "variance" in which else 1.0), v)


def _divided_by_block(v, which):
    def back(g, hat, rstd, v):
        share = g.shape[-1] / _block(g) if "backward" in which else 1.0
        terms = g.mean(-1, keepdim=True) + hat * (g * hat).mean(-1, keepdim=True)
        return rstd * (g - share * terms)

    return made(v, stats=lambda s, v: _by_block(s, v, which), back=back)


# ---- backward


def _terms(*means: bool):
    return _with(back=lambda g, hat, rstd, v: through(g, hat, rstd, v, means))


def _rows_of_one_program(v, variant):
    """dweight and dbias of the first or last block of rows."""
    block, last = variant
    rows = len(v["x"])
    kept = slice((rows - 1) // block * block, rows) if last else slice(0, block)
    return made(
        v,
        of_weight=lambda dy, s, mean, rstd: (dy * (s - mean) * rstd)[kept].sum(0),
        of_bias=lambda dy: dy[kept].sum(0),
    )


def _sums_exchanged(v):
    found = made(v)
    return found | {"dweight": found["dbias"], "dbias": found["dweight"]}


def _normalised_too(v):
    """ds taken as a part of dy, for d only."""

    def back(g, hat, rstd, v):
        ds = v["ds"].double().expand(g.shape) if v["ds"] is not None else torch.zeros_like(g)
        return through(g + ds * v["weight"].double(), hat, rstd, v)

    return made(v, back=back, dsum=lambda d, ds: d)


def _kept_x(v):
    """h in backward from x and the statistics of s; in place x holds y by then."""
    dy, ds = gradients_given(v, torch.float64)
    s = v["x"].double() + v["residual"].double()
    mean, rstd = statistics(s, v)
    right = made(v)
    hat = ((right["y"] if v["in_place"] else v["x"].double()) - mean) * rstd
    d = through(dy * v["weight"].double(), hat, rstd, v) + ds
    return right | {"dx": d, "dresidual": d, "dweight": (dy * hat).sum(0)}


# ---- signs


def _output_wrong(e, t, name: str) -> bool:
    got = t.outcome.outputs[name]
    return bool(tolerance.exceeded(error(got, t.want[name]), e.limits[(name, got.dtype)]))


def _ran(e):
    return [t for t in e.failing if t.outcome.error is None]


def _only_in(e, names: tuple[str, ...], *cases: str) -> bool:
    """Wrong in these cases only, no call raised, and there in these outputs and in no others."""
    ran = _ran(e)
    if not ran or len(ran) < len(e.failing) or (cases and not e.failed_only(*cases)):
        return False
    return all(any(_output_wrong(e, t, n) for t in ran) == (n in names) for n in ("y", "s", "dx", "dweight", "dbias"))


def _statistics_in_two_bytes(e) -> bool:
    ran = _ran(e)
    if not ran or not e.failed_only(*TWO_BYTES):
        return False
    known = not any(_output_wrong(e, t, "dbias") or _output_wrong(e, t, "s") for t in ran)
    return known and all(_output_wrong(e, t, "dweight") for t in ran)


def _idle_programs(e) -> bool:
    """dweight and dbias are NaN throughout, but not in every case."""
    sums = [t.outcome.outputs[name] for t in _ran(e) for name in ("dweight", "dbias")]
    some = _only_in(e, ("dweight", "dbias")) and any(t.right for t in e.tried)
    return some and all(bool(x.isnan().all()) for x in sums)


def _overwritten(e) -> bool:
    """Right in both results, wrong in the gradients, in place only."""
    ran = _ran(e)
    if not ran or len(ran) < len(e.failing) or not e.failed_only(*IN_PLACE):
        return False
    return all(not _output_wrong(e, t, "y") and not _output_wrong(e, t, "s") and _output_wrong(e, t, "dx") for t in ran)


AUTOGRAD = (
    Mistake(
        "in_place_ignored",
        "In place was asked for: y is to lie in the memory of x, and s in that of residual.",
        sign=lambda e: e.raised("does not lie in the memory of"),
    ),
    Mistake(
        "not_marked_dirty",
        "In place, autograd has to be told what was written over: `ctx.mark_dirty(x, residual)`. Without it nobody "
        "notices that a value was overwritten which an earlier operator kept, as exp keeps its result, and that one's "
        "gradient is wrong in silence.",
        sign=lambda e: e.raised("autograd was not told") and e.failed_only(*IN_PLACE),
    ),
    Mistake(
        "gradient_overwritten",
        "A gradient that arrived was written over: dy and ds belong to autograd, which may pass them to others too. "
        "Store into new memory.",
        sign=lambda e: e.changed("dy") or e.changed("ds"),
    ),
    Mistake(
        "always_in_place",
        "In place was not asked for: x and residual belong to others then, so y and s are new.",
        sign=lambda e: e.raised("lies in the memory of an input") or e.changed("x") or e.changed("residual"),
    ),
    NOT_DIFFERENTIABLE,
    number_of_gradients("eps and in_place"),
    Mistake(
        "old_values_kept",
        "In place, what backward needs was overwritten: x holds y by then. Keep s, which backward needs anyway, and "
        "the two statistics of a row.",
        sign=_overwritten,
    ),
    Mistake(
        "gradient_of_s_expected",
        "Only the call fails in which nobody uses s further: its gradient is None there, or, without "
        "`set_materialize_grads(False)`, zeros.",
        sign=lambda e: e.failed_only("s not used further"),
    ),
    Mistake(
        "gradient_strides_ignored",
        "Right only for contiguous gradients: dy and ds come with strides of their own, and those of a sum are 0.",
        sign=lambda e: (
            e.failed("the gradient of a sum")
            and e.failed_only("strided gradients", "gradients with columns apart", "the gradient of a sum")
        ),
    ),
    Mistake(
        "strides_ignored",
        "Right only while the rows of x and of residual are adjacent: use `stride(0)` of each.",
        sign=lambda e: (
            (e.failed("strided x") or e.failed("strided residual"))
            and e.failed_only("strided x", "strided residual", "in place, strided")
        ),
    ),
    Mistake(
        "idle_programs",
        "dweight and dbias are NaN where there are fewer rows than programs: the partial sums of a program that had no "
        "rows were never written. Write zeros there, or launch no more programs than there are rows.",
        sign=_idle_programs,
    ),
    Mistake(
        "statistics_in_two_bytes",
        "Mean and variance were computed in the type of x: convert to fp32 when you load.",
        sign=_statistics_in_two_bytes,
    ),
    Mistake(
        "sums_in_two_bytes",
        "dweight and dbias were summed in the type of x: rows are many, so add up in fp32.",
        sign=lambda e: _only_in(e, ("dweight", "dbias"), *TWO_BYTES),
    ),
    Mistake(
        "difference_of_squares",
        "Wrong where the mean is large: E[s^2] - E[s]^2 is a small difference of two large numbers. Subtract the mean "
        "first, then square.",
        sign=lambda e: e.failed("a large mean") and e.failed_only("a large mean", "rows that hardly vary"),
    ),
)

STATISTICS = (
    Mistake(
        "eps_hard_coded",
        "eps changes nothing: it is an argument, not always 1e-5.",
        answer=lambda v: made(v | {"eps": 1e-5}),
    ),
    Mistake(
        "eps_outside_root",
        "eps was added to the standard deviation: it stands under the root, 1 / sqrt(var + eps).",
        answer=_stats(_eps_outside),
    ),
    Mistake(
        "eps_missing",
        "eps was not added: rows without variance give NaN.",
        answer=_stats(_eps_missing),
    ),
    Mistake(
        "root_missing",
        "The rows are divided by their variance: it is its root, 1 / sqrt(var + eps).",
        answer=_stats(_root_missing),
    ),
    Mistake(
        "mean_not_subtracted",
        "The variance is that around 0: subtract the mean before squaring.",
        answer=_stats(_around_zero),
    ),
    Mistake(
        "padded_lanes",
        "Lanes beyond the row count in the variance: they hold 0, and (0 - mean)^2 is not 0. Mask the difference, "
        "`tl.where(mask, s - mean, 0.0)`.",
        answer=_stats(_padded),
    ),
    Mistake(
        "divided_by_block",
        "Sums are divided by BLOCK, not by N: right only when N is a power of two.",
        answer=_divided_by_block,
        variants=(
            ("mean", "variance"),
            ("mean",),
            ("variance",),
            ("mean", "variance", "backward"),
            ("backward",),
        ),
    ),
    Mistake(
        "divided_by_one_less",
        "The variance is divided by N - 1: LayerNorm divides by N.",
        answer=_stats(_one_less),
    ),
    Mistake(
        "residual_not_added",
        "The residual was not added: s is x alone.",
        answer=_with(s=lambda x, residual: x),
    ),
    Mistake(
        "weight_missing",
        "y is not multiplied with weight.",
        answer=_with(scaled=lambda hat, weight, bias: hat + bias),
    ),
    Mistake(
        "bias_missing",
        "bias is not added to y.",
        answer=_with(scaled=lambda hat, weight, bias: hat * weight),
    ),
)

GRADIENTS = (
    Mistake(
        "mean_of_g_missing",
        "In d the first mean is missing: g - mean(g) - h mean(g h). The mean of a row of d without ds is 0.",
        answer=_terms(False, True),
    ),
    Mistake(
        "mean_of_gh_missing",
        "In d the second mean is missing: g - mean(g) - h mean(g h), from the variance.",
        answer=_terms(True, False),
    ),
    Mistake(
        "both_means_missing",
        "Mean and variance are taken for constants: both depend on s, g - mean(g) - h mean(g h).",
        answer=_terms(False, False),
    ),
    Mistake(
        "gradient_without_weight",
        "In d the weight is missing: g = dy weight.",
        answer=_with(g=lambda dy, weight: dy),
    ),
    Mistake(
        "gradient_without_rstd",
        "In d the factor rstd is missing.",
        answer=_with(back=lambda g, hat, rstd, v: through(g, hat, 1.0, v)),
    ),
    Mistake(
        "gradient_of_s_lost",
        "ds was not added: s is a result too, and what follows it sends its gradient.",
        answer=_with(dsum=lambda d, ds: d),
    ),
    Mistake(
        "gradient_of_s_to_residual_only",
        "ds was added for the residual and not for x: s = x + residual passes its gradient to both.",
        answer=_with(split=lambda d, ds, whole: (d, whole)),
    ),
    Mistake(
        "gradient_of_s_normalised",
        "ds was added to dy: it reaches s directly and does not pass through the norm.",
        answer=_normalised_too,
    ),
    Mistake(
        "residual_gets_ds_only",
        "The gradient of the residual is ds alone: s is normalised, and it is x + residual.",
        answer=_with(split=lambda d, ds, whole: (whole, ds)),
    ),
    Mistake(
        "x_for_s",
        "Backward makes h from x: mean and rstd are those of s = x + residual, so s is what has to be kept.",
        answer=_kept_x,
    ),
    Mistake(
        "weight_gradient_of_s",
        "dweight is the sum of dy s: it is that of dy h, with h = (s - mean) rstd.",
        answer=_with(of_weight=lambda dy, s, mean, rstd: (dy * s).sum(0)),
    ),
    Mistake(
        "weight_gradient_of_g",
        "dweight was made from g = dy weight: it is the sum of dy h, without the weight.",
        answer=lambda v: made(
            v, of_weight=lambda dy, s, mean, rstd: (dy * v["weight"].double() * (s - mean) * rstd).sum(0)
        ),
    ),
    Mistake(
        "weight_gradient_without_rstd",
        "dweight lacks rstd: it is the sum of dy h, with h = (s - mean) rstd.",
        answer=_with(of_weight=lambda dy, s, mean, rstd: (dy * (s - mean)).sum(0)),
    ),
    Mistake(
        "sums_exchanged",
        "dweight and dbias are exchanged.",
        answer=_sums_exchanged,
    ),
    Mistake(
        "sums_of_one_program",
        "dweight and dbias are those of one block of rows: each program needs a row of its own for its partial sums, "
        "and a second kernel adds those up.",
        answer=_rows_of_one_program,
        variants=tuple((block, last) for block in BLOCKS for last in (True, False)),
    ),
    Mistake(
        "sums_averaged",
        "dweight and dbias are means over rows: they are sums.",
        answer=_with(
            of_weight=lambda dy, s, mean, rstd: (dy * (s - mean) * rstd).mean(0), of_bias=lambda dy: dy.mean(0)
        ),
    ),
)

MISTAKES = (*AUTOGRAD, *STATISTICS, *GRADIENTS)
