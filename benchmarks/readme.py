"""python -m benchmarks.readme [--check]: the README's table and figures, made from benchmarks/results/."""

import argparse
import io
import re
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import around, recorded
from course_lib import plots, results
from course_lib.roofline import Roof, Work

ROOT = Path(__file__).resolve().parents[1]
README, FIGURE = ROOT / "README.md", ROOT / "benchmarks" / "results" / "roofline.svg"
AROUND = FIGURE.with_name("beside.svg")
SAME = {"svg.hashsalt": "speed of light", "svg.fonttype": "none"}  # the same bytes on every build
BEGIN, END = "<!-- measured: begin (python -m benchmarks.readme) -->", "<!-- measured: end -->"

SHOWN = {  # section -> rows of the table, in order
    "softmax": [f"softmax bf16 16384 x {n}" for n in (1024, 4096, 16384)],
    "matmul": ["matmul bfloat16 8192 x 8192 x 8192", "matmul bfloat16 4096 x 4096 x 4096"],
    "attention": [
        f"attention {direction} bf16 {size}"
        for size in (
            "4 x 16 x 4096 x 64",
            "4 x 16 x 4096 x 64 causal",
            "4 x 16 x 4096 x 128",
            "4 x 16 x 4096 x 128 causal",
            "4 x 16 x 16384 x 128",
            "256 x 16 x 256 x 72",
        )
        for direction in ("forward", "backward")
    ],
    "linear_gelu": ["linear_gelu 16384 x 4304 x 1152", "linear_gelu 16384 x 16384 x 4096"],
    "mlp": [
        f"mlp step 16384 x {size}, {kept} kept"
        for kept in ("pre-activation", "input")
        for size in ("1152 x 4304", "4096 x 16384")
    ],
    "add_norm": [
        f"add_norm {direction} 16384 x {width}"
        for width in (1152, 4096, 12288, 16384)
        for direction in ("forward", "backward")
    ],
    "rope": [f"rope {direction} 8192, against libraries" for direction in ("forward", "backward")],
    "mx": ["dequantize 8192 x 28672", "product 1 x 14336 x 4096", "product 16 x 14336 x 4096"],
    "pointwise": ["axpy fp32 2^27", "cos_chain fp32 2^27, 2 times"],
    "tower": [
        f"tower {direction} 256 x 256 x 1152, 4 layers, {kept} kept, against strong"
        for kept in ("pre-activation", "input")
        for direction in ("forward", "backward")
    ],
}
FAMILY = {"mx": "MXINT8 "}  # what the names of a section's rows leave out
POINTS = {  # section, row -> label, work of one call, roof
    ("pointwise", "axpy fp32 2^27"): ("axpy", Work(2 * 2**27, 12 * 2**27), "fp32"),
    ("softmax", "softmax bf16 16384 x 4096"): ("softmax", Work(5 * 2**26, 4 * 2**26), "fp32"),
    ("matmul", "matmul bfloat16 8192 x 8192 x 8192"): ("matmul 8192", Work(2 * 2**39, 6 * 2**26), "bf16"),
    ("attention", "attention forward bf16 256 x 16 x 256 x 72"): ("attention 72", Work(72 * 2**30, 72 * 2**23), "bf16"),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the table is not up to date")
    old = README.read_text(encoding="utf-8")
    new = with_table(old)
    if parser.parse_args().check:
        return 0 if new == old else 1
    README.write_text(new, encoding="utf-8")
    FIGURE.write_text(as_svg(figure), encoding="utf-8")
    if around.is_there():
        AROUND.write_text(as_svg(around.figure), encoding="utf-8")
    return 0


def with_table(readme: str) -> str:
    """The README with the measured table between its markers."""
    inside = f"{BEGIN}\n{table()}\n{END}"
    return re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: inside, readme, flags=re.DOTALL)


def table() -> str:
    lines = ["| kernel | ours | best peer | each alone | in turn | 95 % interval | processes |", "|---" * 7 + "|"]
    for section, names in SHOWN.items():
        rows = _rows(section)
        lines += [_line(rows[name], FAMILY.get(section, "")) for name in names]
    entry = results.load("softmax")
    versions = ", ".join(f"{name} {entry['versions'][name]}" for name in ("torch", "triton", "driver"))
    dates = sorted({results.load(section)["date"] for section in SHOWN})
    said = [f"{entry['machine']}, {versions}, {' to '.join(dict.fromkeys((dates[0], dates[-1])))}."]
    measured = [(row, FAMILY.get(section, "")) for section in SHOWN for row in _rows(section).values()]
    missed = [one for row, family in measured for one in (_missed(row, family), *_large_peaks(row))]
    said.append(f"Over the course's own targets: {', '.join(filter(None, missed)) or 'none'}.")
    changed = [section for section in SHOWN if recorded.is_stale(section)]
    if changed:
        said.append(f"The code behind {', '.join(changed)} has changed since it was measured.")
    picture = f"\n\n![Ratios to the best peer at shapes around the table](benchmarks/results/{AROUND.name})"
    return "\n".join([*lines, "", " ".join(said), "", around.said() + picture * around.is_there()])


def _line(row: dict, family: str) -> str:
    ours = row.get("alone us", row["value"])
    time = f"{ours:.4g}" if ours < 1e4 else f"{ours:.0f}"
    alone = f"{row['ratio alone']:.3f}" if "ratio alone" in row else ""
    apart = f"{row['least ratio']:.3f} to {row['largest ratio']:.3f}" if "least ratio" in row else ""
    cells = [family + row["name"], f"{time} {row['unit']}", row["best peer"], alone, f"{row['ratio']:.3f}"]
    return "| " + " | ".join([*cells, f"{row['low']:.3f} to {row['high']:.3f}", apart]) + " |"


def _missed(row: dict, family: str) -> str:
    """A row over the target that was set before it was measured, also where it is not in the table."""
    target = row.get("target")
    if target is None or row["ratio"] <= target:
        return ""
    return f"{family}{row['name']} ({row['ratio']:.4g}, target {target:.4g})"


def _large_peaks(row: dict) -> list[str]:
    """The same of a row of memory, beside the memory of others."""
    shares = {rival: (row.get(f"of {rival}'s"), row.get(f"of {rival}'s, to reach")) for rival in ("strong", "naive")}
    return [
        f"{row['name']} ({share:.4g} of {rival}'s, target {target:.3g})"
        for rival, (share, target) in shares.items()
        if share is not None and share > target
    ]


def _rows(section: str) -> dict[str, dict]:
    return {row["name"]: row for row in results.load(section)["rows"]}


def figure():
    """The roofline with measured roofs and points."""
    ceilings = {name: row["value"] for name, row in _rows("ceilings").items()}
    roofs = [Roof(kind, ceilings[f"matmul {kind}"], ceilings["copy"]) for kind in ("bf16", "fp32")]
    points = []
    for (section, name), (label, work, roof) in POINTS.items():
        points.append((label, work, _rows(section)[name]["value"] * 1e-6, roof))
    title = "What an H200 reaches, and where kernels of this course lie"
    return plots.roofline(roofs, points, title=title, device=results.load("ceilings")["machine"]).figure


def as_svg(draw: Callable) -> str:
    """The figure as text."""
    import matplotlib

    with matplotlib.rc_context(SAME):
        text = io.StringIO()
        draw().savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    return text.getvalue()


if __name__ == "__main__":
    sys.exit(main())
