"""Figures to play with: a kernel that moves under the roofs, the three limits of its time, attention in tiles, when
compiling pays, the keys of a call, and buckets of gradients in a training step.

Where nobody can move a slider (a page, an executed notebook) the same object shows a still: one figure with
several positions of the sliders drawn into it.
"""

from dataclasses import replace
from html import escape

import ipywidgets
import numpy as np

from course_lib.bits import bf16_bits, bf16_value, mx_value, pack
from course_lib.distributed.costs import Line
from course_lib.distributed.steps import MIB, step_on_paper
from course_lib.drawing.bits import bit_rows, decoding
from course_lib.drawing.gains import saved_words, totals
from course_lib.drawing.house import (
    INK,
    Shown,
    axes_or_new,
    bundle,
    description,
    drawn,
    finish,
    look,
    png,
    quantity,
    two_to,
)
from course_lib.drawing.keys import call_path, key_map
from course_lib.drawing.ranks import ranks as rank_lanes
from course_lib.drawing.roofs import Point, rates_shown, roofline
from course_lib.drawing.rotation import dials, frequencies, score
from course_lib.drawing.sizes import against_size
from course_lib.drawing.tiles import draw_step, online_steps, step_axes
from course_lib.probes import situations
from course_lib.roofline import Roof, Work, floor_s, regime, ridge, terms_s
from course_lib.tiles import SKIPPED, online, tile_kinds, visible

__all__ = [
    "Explorer",
    "attention_stepper",
    "break_even_explorer",
    "bucket_explorer",
    "key_set_builder",
    "mx_bit_editor",
    "regime_explorer",
    "roofline_explorer",
]

_DTYPES = {"fp32": 4, "bf16": 2}  # bytes an element
_TERMS = ("overhead", "bandwidth", "compute")


class Explorer:
    """Sliders above a figure, and one sentence that says what is seen.

    `controls["size"].value = 20` moves it from Python as a hand does in the browser.
    """

    def __init__(self, axes, controls, move, still, alt):
        self.axes = axes
        self.controls = controls  # name -> ipywidget
        self.words = ipywidgets.HTML()
        self.picture = ipywidgets.Image(format="png", width=round(axes.figure.get_figwidth() * 96))
        self.box = ipywidgets.VBox([*controls.values(), self.words, self.picture])
        self.alt = alt
        self._move, self._still = move, still
        for control in controls.values():
            control.observe(self._moved, names="value")
        self._moved()

    @drawn
    def _moved(self, _=None):
        self.words.value = escape(self._move(**{name: c.value for name, c in self.controls.items()}))
        self.picture.value = png(self.axes)

    def still(self):
        """Several positions in one figure; returns its Axes."""
        return self._still()

    def _repr_mimebundle_(self, include=None, exclude=None):
        """The widget for who can run it; for everybody else the still, with its alt text.

        A viewer takes the richest form it knows. nbconvert and GitHub fall back to the picture when the
        notebook holds no widget state; JupyterLab does not, so keep the state that nbclient stores.
        """
        data, metadata = bundle(self.still(), self.alt)
        live = self.box._repr_mimebundle_()
        view = "application/vnd.jupyter.widget-view+json"
        return {view: live[view], **data} if view in live else data, metadata

    def _ipython_display_(self):
        from IPython.display import display

        display(Shown(*self._repr_mimebundle_()), Shown(description(self.alt)))


def _slider(description, low, high, value):
    return ipywidgets.IntSlider(value, low, high, description=description, continuous_update=False,
                                style={"description_width": "11em"}, layout={"width": "34em"})  # fmt: skip


def _powers(description, powers, value):
    return ipywidgets.SelectionSlider(options=[2**k for k in powers], value=value, description=description,
                                      continuous_update=False, style={"description_width": "11em"},
                                      layout={"width": "34em"})  # fmt: skip


def _chain(size, dtype, ops, fused) -> tuple[Work, int]:
    """Work of one kernel and how many kernels: `ops` multiply-adds on each of 2^size elements.

    Fused, one kernel reads and writes each element once; otherwise every multiply-add does.
    """
    elements, traffic = 2**size, 2 * _DTYPES[dtype]
    return (Work(2 * ops * elements, traffic * elements), 1) if fused else (Work(2 * elements, traffic * elements), ops)


@drawn
def roofline_explorer(roofs, *, device=""):
    """A chain of multiply-adds as a point under the roofs, moved by size, dtype, length and fusion.

    The point stands at the floor of its time, launches included: small sizes hang below the roof. Elementwise
    arithmetic is fp32 and uses no matrix units, so its roof is the one named "fp32" (the last one otherwise).
    """
    roofs = [roofs] if isinstance(roofs, Roof) else list(roofs)
    own = next((roof for roof in roofs if roof.name == "fp32"), roofs[-1])
    axes = roofline(roofs, title="A chain of multiply-adds under the roofs", device=device)
    axes.set(xlim=(0.1, axes.get_xlim()[1]), ylim=rates_shown(1e8, roofs))
    (point,) = axes.plot([], [], gid="point", zorder=6, **look(1) | {"markersize": 10, "linestyle": "none"})

    def move(size, dtype, ops, fused):
        work, kernels = _chain(size, dtype, ops, fused)
        seconds = kernels * floor_s(work, own)
        point.set_data([work.intensity], [kernels * work.flops / seconds])
        finish(axes, f"{ops} multiply-adds on {two_to(size)} {dtype} numbers, {'fused' if fused else 'not fused'}")
        return (
            f"{work.intensity:.3g} FLOP/byte, {kernels} kernel{'s' * (kernels > 1)}, "
            f"floor {quantity(seconds, 's')}: {regime(work, own)} is the limit."
        )

    def still():
        places = [(26, "fp32", 16, False), (26, "fp32", 16, True), (26, "bf16", 16, True), (26, "fp32", 256, True),
                  (12, "fp32", 256, True)]  # fmt: skip
        points = []
        for size, dtype, ops, fused in places:
            work, kernels = _chain(size, dtype, ops, fused)
            seconds = floor_s(work, own) if regime(work, own) == "overhead" else None
            label = f"{ops} on {two_to(size)} {dtype}, {'fused' if fused else 'not fused'}"
            points.append(Point(label, kernels * work, seconds and kernels * seconds, own.name))
        title = "Fusion moves a chain of multiply-adds to the right; a small size drops it below the roof"
        return roofline(roofs, points, title=title, device=device)

    controls = {
        "size": _slider("log2 of the size", 10, 30, 24),
        "dtype": ipywidgets.ToggleButtons(options=list(_DTYPES), description="stored as"),
        "ops": _powers("multiply-adds", range(11), 16),
        "fused": ipywidgets.Checkbox(False, description="fused into one kernel"),
    }
    alt = (
        "Roofline of a chain of multiply-adds: unfused it sits far left on the bandwidth slope, fused it moves "
        "right with the number of multiply-adds, with bf16 storage further right; a small size falls below the roof."
    )
    return Explorer(axes, controls, move, still, alt)


@drawn
def regime_explorer(roof, *, device=""):
    """Launch, traffic and arithmetic of an fp32 kernel against its size, and which of the three sets the time."""
    sizes, device = 2.0 ** np.arange(8, 31), device or f"rates of {roof.name}"
    axes = axes_or_new(None, 7.0, 4.2)
    curves = {}
    for i, name in enumerate(_TERMS):
        kind = {"color": look(i)["color"], "linestyle": look(i)["linestyle"]}
        (curves[name],) = axes.plot(sizes, np.ones_like(sizes), label=name, gid=name, **kind)
    (point,) = axes.plot([], [], "o", gid="point", color=INK, markersize=9, label="this kernel's floor", zorder=6)
    against_size(axes, "elements")
    axes.set(xlim=(sizes[0], sizes[-1]), ylim=(1e-7, 1e-1))
    axes.legend(loc="upper left")
    finish(axes, " ", device)

    def move(size, flops, launch_us):
        here = Roof(roof.name, roof.flops_per_s, roof.bytes_per_s, launch_us * 1e-6)
        limits = [terms_s(_element(n, flops), here) for n in sizes]
        now, which = terms_s(_element(2**size, flops), here), regime(_element(2**size, flops), here)
        for name, curve in curves.items():
            curve.set_ydata([limit[name] for limit in limits])
            curve.set_linewidth(3.2 if name == which else 1.2)
        point.set_data([2**size], [now[which]])
        finish(axes, f"At {two_to(size)} elements {which} sets the time: {quantity(now[which], 's')}")
        return ", ".join(f"{name} {quantity(now[name], 's')}" for name in _TERMS) + f": {which} is the limit."

    def still():
        return _regime_still(roof, sizes, device)

    controls = {
        "size": _slider("log2 of the size", 8, 30, 16),
        "flops": _powers("FLOPs an element", range(13), 2),
        "launch_us": _slider("launch cost (µs)", 0, 50, max(1, min(50, round(roof.launch_s * 1e6)))),
    }
    alt = (
        "Least time against size for three launch costs and for little and much arithmetic: flat while the launch "
        "is the limit, then rising with the size; a dearer launch moves the corner to larger sizes."
    )
    return Explorer(axes, controls, move, still, alt)


def _element(size, flops) -> Work:
    """One fp32 read and one write an element, and some arithmetic."""
    return Work(flops * size, 8 * size)


@drawn
def _regime_still(roof, sizes, device):
    """Floors for three launch costs with little arithmetic, and one with so much that it is the limit."""
    axes = axes_or_new(None, 7.0, 4.2)
    fine = np.geomspace(sizes[0], sizes[-1], 300)
    much = 2 ** round(np.log2(64 * ridge(roof)))  # eight times the ridge, at 8 bytes an element
    for i, (launch_us, flops) in enumerate([(2, 2), (7, 2), (50, 2), (7, much)]):
        here = Roof(roof.name, roof.flops_per_s, roof.bytes_per_s, launch_us * 1e-6)
        kind = look(i) | {"marker": None}
        label = f"launch {launch_us} µs, {flops} FLOPs an element"
        axes.plot(fine, [floor_s(_element(n, flops), here) for n in fine], label=label, **kind)
        corner = here.launch_s / floor_s(_element(1, flops), replace(here, launch_s=0))
        axes.plot(corner, here.launch_s, color=kind["color"], marker=look(i)["marker"])
    against_size(axes, "elements")
    axes.set_xlim(sizes[0], sizes[-1])
    axes.legend(loc="upper left")
    return finish(axes, "Overhead is the limit up to a corner; a dearer launch moves it to larger sizes", device)


@drawn
def attention_stepper(n_q=10, n_k=14, block_m=4, block_n=4, *, seed=7):
    """One program of FlashAttention, tile by tile: where it is, and what one of its rows holds.

    Scores and values are drawn once; the sliders choose the row, the tile, and what is masked.
    """
    rng = np.random.default_rng(seed)
    drawn_scores, values = 1.2 * rng.normal(size=(n_q, n_k)), rng.normal(size=(n_k, 3))
    axes = step_axes()

    def state(query, done, causal, keys):
        """The row's scores as masked, its steps up to now, and how many tiles its program visits."""
        scores = np.where(visible(n_q, n_k, causal=causal, keys=keys), drawn_scores, -np.inf)
        kinds = tile_kinds(n_q, n_k, block_m, block_n, causal=causal, keys=keys)
        visited = int((kinds[query // block_m] != SKIPPED).sum())
        return scores, online(scores[query][: visited * block_n], values, block_n)[:done], visited

    def move(query, done, causal, keys):
        scores, steps, visited = state(query, done, causal, keys)
        step = steps[-1] if steps else None
        draw_step(axes, scores, values, query, step, visited, block_m, block_n, causal=causal, keys=keys)
        if visited == 0:
            return "Every tile is skipped: zeros are stored, and L = -inf."
        if step is None:
            return "Before the first tile: max -inf, sum 0, accumulator 0."
        return _step_words(step, len(steps), visited)

    def still():
        scores, steps, _ = state(n_q - 1, n_k, False, n_k - 1)
        return online_steps(scores[n_q - 1], steps, block_n)

    controls = {
        "query": _slider("query", 0, n_q - 1, n_q // 2),
        "done": _slider("tiles of keys done", 0, -(-n_k // block_n), 1),
        "causal": ipywidgets.Checkbox(True, description="causal"),
        "keys": _slider("keys of this sequence", 0, n_k, n_k),
    }
    alt = (
        "One row of attention after each tile of keys: its scores with the running maximum above, and below the "
        "weights that the sums hold; when a tile brings a larger maximum, all earlier weights shrink by one factor."
    )
    return Explorer(axes[0], controls, move, still, alt)


def _step_words(step, done, visited) -> str:
    acc = ", ".join(f"{x:.2f}" for x in step.acc)
    if step.row_max == -np.inf:
        return f"Tile {done} of {visited}: this row has seen no key yet: max -inf, sum 0, accumulator 0."
    before = f", so what was summed before was multiplied by {step.factor:.2f}" if done > 1 else ""
    words = f"Tile {done} of {visited}: max {step.row_max:.2f}{before}; sum {step.row_sum:.2f}, accumulator ({acc})."
    if done == visited:
        output = ", ".join(f"{x:.2f}" for x in step.acc / step.row_sum)
        words += f" Done: o = ({output}), L = {step.row_max + np.log(step.row_sum):.2f}."
    return words


@drawn
def break_even_explorer():
    """Seconds saved by compiling against the number of calls: how long a call takes, what it gains, how many shapes.

    Every shape costs one compilation; shapes take turns, so all are met in the first calls.
    """
    axes = axes_or_new(None, 7.0, 4.0)

    def move(eager_ms, percent, compile_s, shapes):
        eager = 1e-3 * eager_ms
        costs = (eager, eager * (1 - percent / 100), float(compile_s * shapes))
        axes.clear()
        totals({"this program": costs}, axes)
        return saved_words(*costs)

    def still():
        places = {"10 ms, 30 % less": (10, 30, 10, 1), "3 shapes": (10, 30, 10, 3), "20 ms": (20, 30, 10, 1),
                  "50 % less": (10, 50, 10, 1)}  # fmt: skip
        named = {n: (ms / 1e3, ms / 1e3 * (1 - p / 100), float(s * k)) for n, (ms, p, s, k) in places.items()}
        title = "A longer call pays sooner, and so does a larger gain; each new shape puts it off"
        return totals(named, title=title)

    controls = {
        "eager_ms": _powers("eager call (ms)", range(12), 16),
        "percent": _slider("time saved a call (%)", 0, 80, 30),
        "compile_s": _slider("one compilation (s)", 1, 120, 10),
        "shapes": _slider("shapes compiled", 1, 8, 1),
    }
    alt = (
        "Seconds saved against the number of calls: each line starts below zero by the time of compiling and rises; "
        "a longer call or a larger gain crosses zero earlier, three shapes cross it later."
    )
    return Explorer(axes, controls, move, still, alt)


@drawn
def bucket_explorer(layer_mib=96.0, layers=18, ends_mib=16.0):
    """A step on paper: buckets of gradients under the backward pass. Gradients are those of a transformer in bf16.

    layer_mib: gradients of one layer, of which the four matrices have 3, 1, 4 and 4 parts of 12; ends_mib: those of
    the embedding and of the last layer, each.
    """
    axes = axes_or_new(None, 7.4, 2.4)
    layer = [int(layer_mib * MIB * part / 12) for part in (4, 4, 1, 3)]  # the last is complete first
    gradients = [int(ends_mib * MIB), *layer * layers, int(ends_mib * MIB)]

    def step(bucket_mib, bandwidth, alpha_us, compute_ms, slowed):
        line = Line(1e-6 * alpha_us, 1e-9 / bandwidth)
        compute = 1e-3 * compute_ms
        return step_on_paper(gradients, bucket_mib * MIB, line, compute / 3, 2 * compute / 3, slowed / 100)

    def move(**places):
        made = step(**places)
        axes.clear()
        words = f"{len(made.buckets)} buckets, {quantity(made.exposed_s, 's')} not hidden"
        rank_lanes(made.spans, axes, title=words)
        share = (made.buckets[-1] * 1e-9 / places["bandwidth"] + 1e-6 * places["alpha_us"]) / max(made.exposed_s, 1e-12)
        return f"{words}. The last bucket alone is {min(share, 1):.0%} of that."

    def still():
        return _bucket_still(step)

    controls = {
        "bucket_mib": _powers("bucket (MiB)", range(11), 32),
        "bandwidth": _slider("buffer rate (GB/s)", 5, 450, 300),
        "alpha_us": _powers("alpha (us)", range(1, 12), 16),
        "compute_ms": _slider("computing (ms)", 4, 100, 48),
        "slowed": _slider("slowed while sending (%)", 0, 60, 0),
    }
    alt = (
        "Milliseconds that are not hidden against the size of a bucket, on paper. Three lines are flat up to large "
        "buckets and then rise; with a tenth of the computing the line lies far above, falls first and then rises."
    )
    return Explorer(axes, controls, move, still, alt)


@drawn
def _bucket_still(step):
    """What is not hidden against the size of a bucket, for four machines. `step` as the explorer's."""
    sizes, ax = [2**k for k in range(11)], axes_or_new(None, 7.0, 3.8)
    kinds = {
        "48 ms of computing, 300 GB/s": {},
        "half the rate": {"bandwidth": 150},
        "a tenth of the computing": {"compute_ms": 4.8},
        "slowed by 10 % while sending": {"slowed": 10},
    }
    for i, (name, changed) in enumerate(kinds.items()):
        places = {"bandwidth": 300, "alpha_us": 20, "compute_ms": 48, "slowed": 0} | changed
        ax.plot(sizes, [1e3 * step(mib, **places).exposed_s for mib in sizes], label=name, **look(i))
    ax.set_xscale("log", base=2)
    ax.set(xlabel="MiB in a bucket", ylabel="not hidden, ms", yscale="log")
    ax.grid(True, axis="y")
    ax.legend()
    return finish(ax, "With much to compute only the last bucket shows; with little, alpha does too")


@drawn
def key_set_builder():
    """A call put together from a few facts, its keys as torch gives them at that moment, and its path.

    The still has one column for each fact, changed alone.
    """
    axes = axes_or_new(None, 9.2, 4.2)
    rows = 10.5  # as many as the longest path needs, so that nothing jumps

    def move(operator, kind, device, requires_grad, **ticked):
        around = [name for name in situations.AROUND if ticked[_PLAIN.get(name, name)]]
        path = situations.path_in(operator, kind, device, requires_grad, around)
        axes.clear()
        call_path(path, axes).set_ylim(rows, axes.get_ylim()[1])
        keys = [row.key for row in path if row.state != "excluded"]
        excluded = [row.key for row in path if row.state == "excluded"]
        return f"The set, highest first: {', '.join(keys)}. Excluded: {', '.join(excluded) or 'nothing'}."

    def still():
        plain = ("mm(x, y)", "an ordinary tensor", "cpu", False, ())
        asked = {"an ordinary tensor": plain, "a gradient is required": (*plain[:3], True, ())}
        asked |= {name.replace("handler", "in its handler"): (*plain[:4], (name,)) for name in situations.AROUND}
        asked |= {kind: (plain[0], kind, *plain[2:]) for kind in list(situations.KINDS)[1:]}
        asked["on meta"] = (*plain[:2], "meta", *plain[3:])
        return key_map({name: situations.path_in(*facts) for name, facts in asked.items()}, order=situations.order())

    controls = {
        "operator": ipywidgets.Dropdown(options=list(situations.OPERATORS), description="operator"),
        "kind": ipywidgets.Dropdown(options=list(situations.KINDS), description="x is"),
        "device": ipywidgets.ToggleButtons(options=situations.devices(), description="lives on"),
        "requires_grad": ipywidgets.Checkbox(False, description="x requires a gradient"),
    }
    for name in situations.AROUND:
        controls[_PLAIN.get(name, name)] = ipywidgets.Checkbox(False, description=_SAYS[name])
    alt = (
        "Dispatch keys from the highest to the lowest against situations of one call: which keys run a kernel, pass "
        "the call on, are excluded or not reached. An ordinary tensor and one that requires a gradient have the same "
        "column; inference mode, autocast, modes, wrappers, vmap and meta change it."
    )
    return Explorer(axes, controls, move, still, alt)


_PLAIN = {"dispatch mode": "dispatch_mode"}  # a name that Python takes as an argument
_SAYS = {
    "autocast": "in autocast",
    "inference_mode": "in inference mode",
    "no_grad": "in no_grad",
    "dispatch mode": "under a dispatch mode",
    "handler": "in the handler of a mode",
    "vmap": "in torch.func.vmap",
}


@drawn
def rotation_explorer(pairs=8):
    """A query and a key that are turned by their positions, pair by pair; the wedge between them is their distance's.

    The score is that of two equal vectors of length 1 in every pair.
    """
    axes = axes_or_new(None, 8.2, 1.8)

    def move(query, key, base):
        turns = frequencies(2 * pairs, base)
        axes.clear()
        dials([(query, key)], turns, axes, title=f"Query at {query}, key at {key}, base {base:,}")
        words = f"Distance {query - key}: two equal vectors score {score(query - key, turns):.2f} of {pairs}. "
        half = sum(abs(turn * (query - key)) > np.pi / 2 for turn in turns)
        return words + f"More than a quarter turn apart: {half} of {pairs} pairs."

    def still():
        title = "In the first three rows the distance is the same: so are the wedges, and so is the score"
        return dials([(5, 2), (25, 22), (3005, 3002), (25, 2)], frequencies(2 * pairs), title=title)

    controls = {
        "query": _slider("position of the query", 0, 200, 25),
        "key": _slider("position of the key", 0, 200, 22),
        "base": ipywidgets.SelectionSlider(options=[10, 100, 1000, 10000, 500000], value=10000, description="base",
                                           continuous_update=False, style={"description_width": "11em"},
                                           layout={"width": "34em"}),
    }  # fmt: skip
    alt = (
        "Eight pairs as dials for four pairs of positions, each with an arrow for the query and one for the key: "
        "where both positions grow by the same number all arrows move, the wedges between them and the score stay."
    )
    return Explorer(axes, controls, move, still, alt)


@drawn
def mx_bit_editor():
    """One MXINT8 number as bits: its mantissa and exponent, the same number as bf16, and what packing makes of it."""
    axes = axes_or_new(None, 8.6, 2.3)

    def move(m, e):
        axes.clear()
        bit_rows(m, e, axes)
        value, packed = mx_value(m, e), pack(m, e)
        words = f"{m} * 2^({e} - 133) = {value:g}; bf16 holds {bf16_value(bf16_bits(value)):g}"
        return f"{words}; packing ends with {packed.value:g}: {'right' if packed.right else 'wrong'}."

    def still():
        return decoding([(96, 127), (64, 127), (40, 127), (-40, 127), (-128, 127), (5, 0), (64, 255), (-128, 254)])

    controls = {"m": _slider("mantissa m", -128, 127, 40), "e": _slider("exponent e", 0, 255, 127)}
    alt = (
        "Eight numbers, each with the bits of its mantissa and exponent, of the same value as bf16, and of what "
        "packing ends with: right for 96, 64, 40 and -40 with an ordinary exponent; for -128 it gives 0, for exponent "
        "0 twice the value, and for exponent 255 infinity where NaN is asked for."
    )
    return Explorer(axes, controls, move, still, alt)
