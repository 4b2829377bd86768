"""Buckets of gradients in a training step."""

from course_lib.distributed.costs import Line
from course_lib.distributed.steps import MIB, step_on_paper
from course_lib.distributed.timeline import COMMUNICATION, COMPUTE
from course_lib.plots.house import axes_or_new, drawn, finish, look, quantity
from course_lib.plots.rank_lanes import ranks as rank_lanes
from course_lib.widgets.explorer import Explorer, powers, slider
from course_lib.widgets.live import Live

__all__ = ["bucket_explorer"]


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

    def numbers(**places):
        made = step(**places)
        title = f"{len(made.buckets)} buckets, {quantity(made.exposed_s, 's')} not hidden"
        last = made.buckets[-1] * 1e-9 / places["bandwidth"] + 1e-6 * places["alpha_us"]
        (forward, backward), sends = (
            [(span.start_s, span.end_s) for span in made.spans if span.kind == kind]
            for kind in (COMPUTE, COMMUNICATION)
        )
        return {
            "buckets": len(made.buckets),
            "exposed": made.exposed_s,
            "seconds": made.seconds,
            "forward": forward[1],
            "backward_ends": backward[1],
            "sends": sends,
            "title": title,
            "words": f"{title}. The last bucket alone is {min(last / max(made.exposed_s, 1e-12), 1):.0%} of that.",
        }

    def move(**places):
        seen = numbers(**places)
        axes.clear()
        rank_lanes(step(**places).spans, axes, title=seen["title"])
        return seen["words"]

    def still():
        return _bucket_still(step)

    controls = {
        "bucket_mib": powers("bucket (MiB)", range(11), 32),
        "bandwidth": slider("buffer rate (GB/s)", 5, 450, 300),
        "alpha_us": powers("alpha (us)", range(1, 12), 16),
        "compute_ms": slider("computing (ms)", 4, 100, 48),
        "slowed": slider("slowed while sending (%)", 0, 60, 0),
    }
    alt = (
        "Milliseconds that are not hidden against the size of a bucket, on paper. Three lines are flat up to large "
        "buckets and then rise; with a tenth of the computing the line lies far above up to 128 MiB, falls from 16 to "
        "128 and then rises."
    )
    return Explorer(axes, controls, move, still, alt, Live("buckets", numbers, lambda: {"gradients": gradients}))


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
    ax.yaxis.set_major_formatter("{x:g}")
    ax.grid(True, axis="y")
    ax.legend()
    last = {mib: step(mib, 300, 20, 48, 0).buckets[-1] // MIB for mib in (256, 512)}
    note = f"the last bucket: {last[256]} MiB with 256 a bucket, {last[512]} with 512"
    return finish(ax, "With much to compute only the last bucket shows; with little, alpha does too", note=note)
