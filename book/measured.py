"""What was measured: ours beside the best peer, the picture of all ratios, and every other row that was recorded."""

from __future__ import annotations

import html
from math import log

from benchmarks import around, recorded
from book.markup import raw
from course_lib import results

__all__ = ["everything", "measured"]

TITLES = {
    "softmax": "Softmax",
    "matmul": "Matrix product",
    "attention": "Attention",
    "linear_gelu": "Linear with GELU",
    "mlp": "A step of an MLP",
    "add_norm": "Residual and norm",
    "rope": "RoPE",
    "mx": "MXINT8",
    "pointwise": "Pointwise",
    "dropout": "Dropout",
    "tower": "A vision tower",
    "parallel": "Data parallel training",
}


def measured() -> str:
    """Every row that has a ratio to a peer's time."""
    stale = recorded.stale()
    parts = [
        "# Measured",
        "Our reference kernels beside the best peer: in the same process, in turn (A B B A). A ratio below 1 says that "
        "ours is faster. The floor is the recorded one, or else what the row's bytes need at the rate of a large copy, "
        "or its operations at the rate that a large product lasts at. A shorter product runs at a higher clock, and a "
        "kernel that reads more than it writes is faster than a copy: such times can lie a little below. A click on "
        "the head of a column sorts.",
    ]
    old = [section for section in TITLES if section in stale]
    others = [s for s in stale if s not in old and not s.startswith("bank")]
    said = f"The code behind {listed(old)} has changed since it was measured." if old else "All of it holds."
    said += f" Of what else was recorded, {listed(others)} is to be measured again." if others else ""
    said += f" So are {sum(s.startswith('bank') for s in stale)} sections on how exercises are judged." if stale else ""
    parts.append(f"```{{admonition}} Does it still hold?\n{said} `python -m benchmarks stale` says the same.\n```")
    parts += ["## All ratios", raw(ratios())]
    for section in TITLES:
        entry = results.load(section)
        versions = ", ".join(f"{name} {entry['versions'][name]}" for name in ("torch", "triton"))
        mark = ". **The code has changed since.**" if section in stale else "."
        parts.append(f"## {TITLES[section]}\n\n{entry['machine']}, {entry['date']}, {versions}{mark}")
        parts.append(raw(rows(TITLES[section], compared(section))))
    parts += ["## Around the table", around.said()]
    if around.is_there():
        parts.append("```{image} /pictures/beside.svg\n:alt: Ratios to the best peer at shapes around the table\n```")
    parts.append("[Everything else that was recorded](recorded.md) has a page of its own.")
    return "\n\n".join(parts)


def compared(section: str) -> list[dict]:
    """Rows with a ratio, in one form: between GPUs a part of the step is compared, under names of its own."""
    found = []
    for row in results.load(section)["rows"]:
        if "ratio" not in row:
            continue
        peer = row.get("best peer", row.get("against", ""))
        ends = {"low": row["ratio low"], "high": row["ratio high"]} if "ratio low" in row else {}
        theirs = row.get("theirs ms", row.get(f"{peer} {row['unit']}"))
        found.append(row | ends | {"best peer": peer, "theirs": theirs, "value": row.get("ours ms", row["value"])})
    return found


def listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def rows(title: str, found: list[dict]) -> str:
    unit = "ms" if found[0]["unit"] == "ms" else "µs"
    heads = [
        "kernel",
        f"ours, {unit}",
        "best peer",
        f"its {unit}",
        "ours / peer's",
        "95 % interval",
        "floor, µs",
        "target",
    ]
    head = "".join(f"<th scope=col{' class=n' if i not in (0, 2) else ''}>{text}</th>" for i, text in enumerate(heads))
    body = []
    for row in found:
        over = row.get("target") is not None and row["ratio"] > row["target"]
        cells = [
            microseconds(row["value"]),
            html.escape(row["best peer"]),
            microseconds(row["theirs"]),
            f"{row['ratio']:.3f}",
            f"{row['low']:.3f} to {row['high']:.3f}",
            microseconds(floor_us(row)),
            "" if row.get("target") is None else f"{row['target']:.3f}" + (", missed" if over else ""),
        ]
        kinds = ("n", "", "n", "n", "n", "n", "n")
        tds = "".join(f"<td{f' class={k}' if k else ''}>{c}</td>" for k, c in zip(kinds, cells))
        body.append(f"<tr><th scope=row>{html.escape(row['name'])}</th>{tds}</tr>")
    inside = f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    return f'<div class="wide"><table class=sortable aria-label="{title}">{inside}</table></div>'


def floor_us(row: dict) -> float | None:
    """The recorded floor, or the row's bytes or operations at the recorded ceilings of the machine."""
    top = {ceiling["name"]: ceiling["value"] for ceiling in results.load("ceilings")["rows"]}
    formats = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "tf32": "tf32"}
    kind = next((short for name, short in formats.items() if name in row["name"]), "bf16")
    if "floor us" in row:
        return row["floor us"]
    if "TB/s" in row:
        return row["value"] * row["TB/s"] * 1e12 / top["copy"]
    return row["value"] * row["TFLOP/s"] * 1e12 / top[f"matmul {kind}"] if "TFLOP/s" in row else None


def microseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}" if value < 1e4 else f"{value:.0f}"


LEAST, MOST = 0.25, 4.0  # where the picture's scale begins and ends


def ratios() -> str:
    """Every ratio with its interval on a logarithmic scale; each row is a name and a track, on a phone one above the
    other."""

    def at(ratio: float) -> float:
        return round(100 * log(min(max(ratio, LEAST), MOST) / LEAST) / log(MOST / LEAST), 2)

    marks = {LEAST: "0.25", 0.5: "0.5", 1.0: "1", 2.0: "2", MOST: "4"}
    lines = "".join(f'<i class="{"one" if v == 1 else "mark"}" style="left:{at(v)}%"></i>' for v in marks)
    scale = "".join(f'<b style="left:{at(v)}%">{text}</b>' for v, text in marks.items())
    drawn, count = [], 0
    for section, title in TITLES.items():
        drawn.append(
            f'<div class="ratio head"><span>{html.escape(title)}</span><span class="track">{scale}</span></div>'
        )
        for row in compared(section):
            said = f"{row['ratio']:.3f}, {row['low']:.3f} to {row['high']:.3f}"
            left, right, kind = at(row["low"]), at(row["high"]), "less" if row["ratio"] < 1 else "more"
            drawn.append(
                f'<div class="ratio" title="{said}"><span>{html.escape(row["name"])}</span><span class="track">{lines}'
                f'<i class="interval" style="left:{left}%;width:{round(right - left, 2)}%"></i>'
                f'<i class="dot {kind}" style="left:{at(row["ratio"])}%"></i></span></div>'
            )
            count += 1
    alt = f"{count} ratios of our time to the best peer's, with intervals; the tables below hold the same numbers."
    said = "Ours / the best peer's time. Left of 1 ours is faster. What lies outside stands at the edge."
    return f'<p class="still">{said}</p><div class="ratios" role="img" aria-label="{alt}">{"".join(drawn)}</div>'


def everything() -> str:
    """Every row of every section that has no ratio; how exercises are judged is left out."""
    stale = recorded.stale()
    parts = ["# Everything else that was recorded", "What lessons and notes say is taken from here."]
    for section in results.sections():
        entry = results.load(section)
        rows = [row for row in entry.get("rows", ()) if isinstance(row, dict)]
        if section in TITLES:
            rows = [row for row in rows if "ratio" not in row]
        if section.startswith("bank") or not rows:
            continue
        columns = [key for key in dict.fromkeys(key for row in rows for key in row) if key != "name"]
        columns = [key for key in columns if all(isinstance(row.get(key), PLAIN) for row in rows)]
        mark = ". **The code has changed since.**" if section in stale else "."
        parts.append(f"## `{section}`\n\n{entry['machine']}, {entry['date']}{mark}")
        head = "".join(f"<th scope=col{' class=n' if key != 'unit' else ''}>{html.escape(key)}</th>" for key in columns)
        body = "".join(
            f"<tr><th scope=row>{html.escape(str(row['name']))}</th>"
            + "".join(f"<td{' class=n' if key != 'unit' else ''}>{cell(row.get(key))}</td>" for key in columns)
            + "</tr>"
            for row in rows
        )
        inside = f"<thead><tr><th scope=col>name</th>{head}</tr></thead><tbody>{body}</tbody>"
        parts.append(raw(f'<div class="wide"><table class=sortable aria-label="{section}">{inside}</table></div>'))
    return "\n\n".join(parts)


PLAIN = (int, float, str, bool, type(None))


def cell(value) -> str:
    if value is None or isinstance(value, bool | str):
        return html.escape({None: "", True: "yes", False: "no"}.get(value, str(value)))
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,.0f}"
