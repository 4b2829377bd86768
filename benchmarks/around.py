"""Shapes around the table, in the README: a sentence that counts, and one picture that leaves nothing out."""

from collections.abc import Iterator

import matplotlib

from benchmarks import recorded
from course_lib import plots, results

__all__ = ["figure", "is_there", "said"]

FAR = 1.15  # of the best peer's time: a cliff begins
LEAST, MOST = 0.25, 2.0  # where the scale begins and ends; what lies beyond stands at its end


def _newest() -> tuple[str, dict] | None:
    """The device of the newest record, and the record."""
    found = [(device, entry) for device in ("h200", "h100") if (entry := results.load("beside", device))]
    return max(found, key=lambda one: one[1]["date"], default=None)


def is_there() -> bool:
    return _newest() is not None


def said() -> str:
    if not is_there():
        return "Shapes around the table (`python -m benchmarks beside`) were not measured since the kernels changed."
    device, entry = _newest()
    rows = [row for row in entry["rows"] if "ratio" in row]
    ratios = [row["ratio"] for row in rows]
    far = "; ".join(_far(kind, [row for row in rows if _kind(row) == kind]) for kind in dict.fromkeys(map(_kind, rows)))
    refused = ", ".join(f"{row['name']} ({row['refused']})" for row in entry["rows"] if "refused" in row)
    changed = " The code behind it has changed since." if recorded.is_stale("beside", device) else ""
    return (
        f"Around the table: {len(rows)} rows at other shapes, each over its best peer (`python -m "
        f"benchmarks beside`; {entry['machine']}, torch {entry['versions']['torch']}, triton "
        f"{entry['versions']['triton']}, {entry['date']}). {sum(one <= 1 for one in ratios)} are at most 1, "
        f"{sum(one <= FAR for one in ratios)} at most {FAR}. Above {FAR}: {far or 'none'}. "
        f"Refused: {refused or 'none'}.{changed}"
    )


def _far(kind: str, rows: list[dict]) -> str:
    """How many of a kind are above, and the worst."""
    worst = max(rows, key=lambda row: row["ratio"])
    above = sum(row["ratio"] > FAR for row in rows)
    name = worst["name"].removeprefix(kind).strip()
    return f"{kind} {above} of {len(rows)}" + (f", at most {worst['ratio']:.3f} ({name})" if above else "")


def figure():
    """A name and a dot for every row, on a logarithmic scale, in two columns."""
    _, entry = _newest()
    rows = list(_with_heads([row for row in entry["rows"] if "ratio" in row]))
    tall = -(-len(rows) // 2)
    cut = tall - any(row is None for _, row in rows[tall - 1 : tall])  # a head is not the last of its column
    made = matplotlib.figure.Figure(figsize=(11.5, 0.9 + 0.155 * tall), layout="constrained")
    for axes, part in zip(made.subplots(1, 2), (rows[:cut], rows[cut:])):
        if part and part[0][1] is not None:
            part.insert(0, (f"{_kind(part[0][1])}, continued", None))
        axes.axvline(1, color="0.25", linewidth=1)
        axes.axvline(FAR, color="0.25", linewidth=0.8, linestyle=":")
        for place, (_, row) in enumerate(part):
            if row is None:
                continue
            far = row["ratio"] > FAR
            color = plots.PALETTE[1 if far else 0]
            at = min(max(row["ratio"], LEAST), MOST)
            axes.plot([1, at], [place, place], color=color, linewidth=0.8)
            axes.plot(at, place, color=color, marker="D" if far else "o", markersize=3.5)
            words, left = f"{row['ratio']:.2f} {row['best peer']}", at < 1
            axes.annotate(words, (at, place), xytext=(-4 if left else 4, 0), textcoords="offset points",
                          ha="right" if left else "left", va="center", fontsize=6,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4})  # fmt: skip
        axes.set(xscale="log", xlim=(LEAST * 0.55, MOST * 1.6), ylim=(tall + 0.6, -0.6))
        axes.set_xticks([0.25, 0.5, 1, 2], ["0.25", "0.5", "1", "2"], fontsize=7)
        axes.set_xticks([], minor=True)
        axes.set_yticks(range(len(part)), [name for name, _ in part], fontsize=6.5)
        for label, (_, row) in zip(axes.get_yticklabels(), part):
            label.set_fontweight("bold" if row is None else "normal")
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    made.suptitle(f"Time over the best peer's, {entry['machine']}: dotted at {FAR}, diamonds above it", fontsize=10)
    return made


def _with_heads(rows: list[dict]) -> Iterator[tuple[str, dict | None]]:
    """(name, row), and a head before each kind: (its name, None)."""
    for kind in dict.fromkeys(map(_kind, rows)):
        yield kind, None
        for row in sorted((row for row in rows if _kind(row) == kind), key=lambda row: row["ratio"]):
            yield row["name"].removeprefix(kind).replace("bfloat16", "").strip(), row


def _kind(row: dict) -> str:
    ways = ("forward", "backward in any order", "backward")
    direction = next((way for way in ways if f" {way} " in row["name"]), "")
    return f"{row['kind']} {direction}".strip()
