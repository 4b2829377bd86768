"""Shapes around the table, in the README: a sentence that counts, and one picture that leaves nothing out."""

from collections.abc import Iterator

import matplotlib

from benchmarks import recorded
from benchmarks.beside import SECTIONS
from course_lib import plots, results

__all__ = ["figure", "is_there", "said"]

FAR = 1.15  # of the best peer's time: a cliff begins
LEAST, MOST = 0.25, 2.0  # where the scale begins and ends; what lies beyond stands at its end


def _recorded() -> tuple[str, dict[str, dict]]:
    """The first device that has all sections, and what they hold; nothing where none has."""
    for device in ("h200", "h100"):
        found = {section: results.load(section, device) for section in SECTIONS}
        if all(found.values()):
            return device, found
    return "", {}


def is_there() -> bool:
    return bool(_recorded()[0])


def _rows() -> list[dict]:
    return [row for entry in _recorded()[1].values() for row in entry["rows"]]


def said() -> str:
    command = f"`python -m benchmarks {' '.join(SECTIONS)}`"
    if not is_there():
        return f"Shapes around the table ({command}) were not measured since the kernels changed."
    device, found = _recorded()
    rows = [row for row in _rows() if "ratio" in row]
    ratios = [row["ratio"] for row in rows]
    far = "; ".join(_far(kind, [row for row in rows if _kind(row) == kind]) for kind in dict.fromkeys(map(_kind, rows)))
    refused = ", ".join(f"{row['name']} ({row['refused']})" for row in _rows() if "refused" in row)
    machines = dict.fromkeys(map(_machine, found.values()))
    # A row that was kept when others of its section were measured again has a date of its own.
    dates = sorted({row.get("date", entry["date"]) for entry in found.values() for row in entry["rows"]})
    stale = " and ".join(f"`{section}`" for section in SECTIONS if recorded.is_stale(section, device))
    return (
        f"Around the table: {len(rows)} rows at other shapes, each over its best peer ({command}; "
        f"{'; '.join(machines)}, {' and '.join(dates)}). {sum(one <= 1 for one in ratios)} are at most 1, "
        f"{sum(one <= FAR for one in ratios)} at most {FAR}. Above {FAR}: {far or 'none'}. "
        f"Refused: {refused or 'none'}." + (f" The code behind {stale} has changed since." if stale else "")
    )


def _machine(entry: dict) -> str:
    versions = entry["versions"]
    return f"{entry['machine']}, torch {versions['torch']}, triton {versions['triton']}"


def _far(kind: str, rows: list[dict]) -> str:
    """How many of a kind are above, and the worst."""
    worst = max(rows, key=lambda row: row["ratio"])
    above = sum(row["ratio"] > FAR for row in rows)
    name = worst["name"].removeprefix(kind).strip()
    return f"{kind} {above} of {len(rows)}" + (f", at most {worst['ratio']:.3f} ({name})" if above else "")


def figure():
    """A name and a dot for every row, on a logarithmic scale, in two columns."""
    rows = list(_with_heads([row for row in _rows() if "ratio" in row]))
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
    machine = " and ".join(dict.fromkeys(entry["machine"] for entry in _recorded()[1].values()))
    made.suptitle(f"Time over the best peer's, {machine}: dotted at {FAR}, diamonds above it", fontsize=10)
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
