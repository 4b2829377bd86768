"""A verdict as a person reads it: text and HTML. Every string that a submission could have chosen is escaped."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html import escape

import torch

from autograder.classroom.counted import many
from autograder.exercise import find
from autograder.judging.score import credit, missed, right_in
from autograder.judging.verdict import TIERS, Asked, CaseVerdict, SpeedVerdict, Verdict, told_apart

RIGHT, WRONG, WAITING = "#0072B2", "#D55E00", "#595959"  # also told apart by their words


def lines(verdict: Verdict) -> list[str]:
    """The report as text, the most useful line first."""
    said = [verdict.headline]
    if verdict.note and not verdict.pending and verdict.cases:
        said.append(verdict.note)
    if verdict.diagnosis:
        said += [text for text in (verdict.diagnosis.pattern, verdict.diagnosis.says) if text]
    said += _missed(verdict)
    said += _parts(verdict)
    said += ["  " + case_line(case) for case in verdict.cases]
    said += [f"Limit for {limit}." for limit in verdict.limits]
    said.append(f"Judged on {_where(verdict)}, seed {verdict.seed}.")
    if verdict.shows_not:
        said.append(f"This tier does not show {verdict.shows_not}.")
    return said


def _missed(verdict: Verdict) -> list[str]:
    """Why many right cases are worth no more than half of the points."""
    judged = find(verdict.exercise) if verdict.right else None
    names = missed(judged, {case.name: case.right for case in verdict.cases}) if judged else []
    shown = ", ".join(f"\u201c{name}\u201d" for name in names)
    return [f"The point here is {judged.about}: at most half of the points before {shown} is right."] if names else []


def _parts(verdict: Verdict) -> list[str]:
    """A line for each output that earns points by itself, where something is wrong."""
    judged = find(verdict.exercise)
    if not judged or verdict.accepted or verdict.note or verdict.pending or not verdict.cases:
        return []
    right, fine = told_apart(verdict.cases)
    said = []
    for name, worth in judged.parts:
        count = right_in(right, fine, name)
        alone = credit(replace(judged, parts=((name, worth),), point=()), right, fine)
        of = f"{alone:g} of {many(worth * judged.points, 'point')}"
        said.append(f"{name}: right in {count} of {many(len(right), 'case')}, {of}.")
    return said


def _where(verdict: Verdict) -> str:
    judged = find(verdict.exercise)
    on_ranks = judged is not None and judged.kind == "distributed"
    return "processes of the CPU, which talk by gloo" if on_ranks else TIERS[verdict.tier]


def case_line(case: CaseVerdict) -> str:
    line = f"{'right' if case.right else 'wrong'}: {case.name} ({case.sizes})"
    return f"{line}: {case.why}" if case.why else line


def html(verdict: Verdict) -> str:
    """The report for a notebook and for feedback: one block, no script, no outside resource."""
    colour = WAITING if verdict.pending else RIGHT if verdict.accepted else WRONG
    parts = [f"<b style='color:{colour}'>{marked(verdict.headline)}</b> {_points(verdict)}"]
    if verdict.note and not verdict.pending and verdict.cases:
        parts.append(marked(verdict.note))
    if verdict.diagnosis:
        parts += [marked(text) for text in (verdict.diagnosis.pattern, verdict.diagnosis.says) if text]
    parts += map(marked, [*_missed(verdict), *_parts(verdict)])
    parts.append(_picture(verdict))
    parts.append(_details("Cases", [case_line(case) for case in verdict.cases]))
    parts.append(_details("Limits", [f"{limit}." for limit in verdict.limits]))
    small = [f"Judged on {_where(verdict)}, seed {verdict.seed}."]
    if verdict.shows_not:
        small.append(f"This tier does not show {verdict.shows_not}.")
    parts.append("<small>" + "<br>".join(map(marked, small)) + "</small>")
    return _block(parts, colour)


def speed_lines(verdict: SpeedVerdict) -> list[str]:
    if not verdict.rows:
        return [f"{Asked(verdict.exercise, speed=True)}: {verdict.note}"]
    worst = min(verdict.rows, key=lambda row: row.share)
    than = "reference's" if worst.share > worst.floor_s / worst.seconds else "floor's"
    said = [f"{Asked(verdict.exercise, speed=True)}: {worst.share:.0%} of the {than} speed at the worst size."]
    said += [verdict.note] if verdict.note else []
    for row in verdict.rows:
        reference = f", reference {row.reference_s * 1e6:.1f} us" if row.reference_s else ""
        said.append(
            f"  {row.sizes}: {row.seconds * 1e6:.1f} us [{row.low_s * 1e6:.1f}, {row.high_s * 1e6:.1f}], "
            f"floor {row.floor_s * 1e6:.1f} us{reference}"
        )
    said.append(f"Full points from {verdict.full:.0%}, none below {verdict.none:.0%}, linear between.")
    return said


def speed_html(verdict: SpeedVerdict) -> str:
    colour = WAITING if verdict.pending else RIGHT if verdict.points == verdict.out_of else WRONG
    first, *rest = speed_lines(verdict)
    parts = [f"<b style='color:{colour}'>{marked(first)}</b> {_points(verdict)}"]
    parts += [marked(line) for line in rest]
    if verdict.rows:
        parts.append(_speed_picture(verdict))
    return _block(parts, colour)


def marked(text: str) -> str:
    """Escaped, and what stands between backticks as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(text))


def _points(verdict: Verdict | SpeedVerdict) -> str:
    state = "pending, " if verdict.pending else ""
    return f"<span>({state}{verdict.points:g} of {many(verdict.out_of, 'point')})</span>"


def _block(parts: list[str], colour: str) -> str:
    body = "".join(f"<div style='margin:.2em 0'>{part}</div>" for part in parts if part)
    return f"<div style='border-left:4px solid {colour};padding-left:.8em;max-width:60em'>{body}</div>"


def _details(title: str, items: list[str]) -> str:
    if not items:
        return ""
    rows = "".join(f"<li>{marked(item)}</li>" for item in items)
    return f"<details><summary>{marked(title)} ({len(items)})</summary><ul style='margin:.2em'>{rows}</ul></details>"


def _picture(verdict: Verdict) -> str:
    """The error map of the largest wrong case that has one."""
    pictured = [case for case in verdict.cases if case.picture is not None]
    if not pictured:
        return ""
    case = max(pictured, key=lambda case: case.picture.over_limit.numel())
    from course_lib import plots

    over = case.picture.over_limit
    which = f"{case.picture.output} in \u201c{case.name}\u201d, {case.sizes}"
    with plots.style():
        figure, axes = plots.figure(width=5.0, height=2.6)
        plots.error_map(over, torch.zeros_like(over), 1.0, ax=axes, device=which)
    return _png(figure, f"Error map of {case.picture.output} in the case {case.name}")


def _speed_picture(verdict: SpeedVerdict) -> str:
    from course_lib import plots
    from course_lib.device import machine

    rows = [(r.sizes, r.seconds, r.floor_s, r.reference_s) for r in verdict.rows]
    with plots.style():
        figure, axes = plots.figure(width=7.0, height=1.4 + 0.4 * len(rows))
        plots.against_floor(rows, ax=axes, device=machine().name)
    return _png(figure, "Measured time beside the floor for each timed size")


def _png(figure, alt: str) -> str:
    from matplotlib import pyplot

    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110, bbox_inches="tight")
    pyplot.close(figure)
    return f"<img alt='{escape(alt)}' src='data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}'>"
