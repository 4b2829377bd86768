"""The page: HTML that needs no other file, reads well in print, and shows nothing of a student unescaped."""

from __future__ import annotations

import base64
import itertools
import statistics
from collections.abc import Iterable, Sequence
from html import escape

from matplotlib.figure import Figure

from autograder import exercise as exercises
from autograder.classroom.counted import many
from autograder.classroom.overview import items, likeness
from autograder.classroom.overview.answers import Answer
from autograder.classroom.report import marked
from autograder.referee.submission import visible
from course_lib import plots

EXAMPLES = 10  # of mistakes
NAMED = 10  # students or exercises in a cell
STYLE = """
:root { color-scheme: light }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 62rem; margin: 2rem auto;
  padding: 0 1rem }
h1 { font-size: 1.7rem; margin-bottom: .2rem } h2 { font-size: 1.25rem; margin-top: 2.2rem }
h3 { font-size: 1rem; margin-bottom: .3rem }
table { border-collapse: collapse; margin: .6rem 0; font-size: .92rem } caption { text-align: left; font-weight: 600 }
th, td { border-bottom: 1px solid #767676; padding: .25rem .7rem .25rem 0; text-align: left; vertical-align: top }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
pre { background: #f4f4f4; padding: .6rem; font-size: .8rem; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem } .wide { overflow-x: auto }
img { max-width: 100%; height: auto } p.small { color: #595959; font-size: .88rem }
@media (max-width: 40rem) { .two { grid-template-columns: 1fr } td { overflow-wrap: anywhere; min-width: 3.5rem }
  td:first-child { min-width: 8.5rem } td.n { min-width: 0 } }
@media print { body { max-width: none; margin: 0; font-size: 11pt } h2, h3 { break-after: avoid }
  tr, pre, img, .pair { break-inside: avoid } }
"""


def page(
    lesson: str,
    answers: Sequence[Answer],
    ungraded: Sequence[str],
    names: dict[str, str],
    odd: Sequence[tuple[str, str]] = (),
) -> str:
    """names: student -> pseudonym on the speed board. odd: student, and what is to be said of the hand-in."""
    totals = items.totals(answers)
    most = sum({one.item: one.out_of for one in answers}.values())
    sections = [
        _head(lesson, answers, totals, most, ungraded),
        _distribution(list(totals.values()), most, _unmarked(answers)),
        _items(items.analysed(answers)),
        _mistakes(answers),
        _waiting(answers),
        _odd(odd),
        _board(answers, names),
        _seconds(answers),
        _alike(answers),
    ]
    title = f"{lesson}: the class"
    return (
        f"<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><title>{_t(title)}</title>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<style>{STYLE}</style></head><body><main>\n" + "\n".join(filter(None, sections)) + "\n</main></body></html>\n"
    )


def _head(lesson, answers, totals, most, ungraded) -> str:
    waiting = len({one.student for one in answers if one.waits})
    said = f"Students with marks: {len(totals)}. Of them {waiting} wait for some of their points, which count 0 here."
    if ungraded:
        said += f" {len(ungraded)} handed in and have no marks yet: {', '.join(ungraded[:20])}."
    where = sorted({f"{one.machine} (torch {one.torch})" for one in answers if one.machine})
    judged = f"Judged on {', '.join(where)}." if where else ""
    keep = "This page names students. It is for the people who teach this class."
    return f"<h1>{_t(lesson)}: the class</h1><p>{_t(said)} {_t(judged)}</p><p class='small'>{keep}</p>"


def _unmarked(answers: Sequence[Answer]) -> str:
    """What the points that were given so far leave out, or ""."""
    words = [one for one in answers if one.waits and one.kind == "words"]
    others = [one for one in answers if one.waits and one.kind != "words"]
    said = []
    for kind, waiting in (("answers in words that are not marked yet", words), ("other points that wait", others)):
        if waiting:
            students, worth = len({one.student for one in waiting}), sum(one.out_of for one in waiting)
            about = f"{len(waiting)}, of {many(students, 'student')}, worth {many(worth, 'point')} in all"
            said.append(f"{kind} ({about})")
    return f"Not counted: {'; '.join(said)}." if said else ""


def _distribution(totals: list[float], most: float, unmarked: str) -> str:
    if not totals:
        return ""
    middle, low, high = (round(one, 2) for one in (statistics.median(totals), min(totals), max(totals)))
    so_far = " so far" if unmarked else ""
    said = f"Half of the class has {middle:g} points or more{so_far}, of {most:g}; the least is {low:g}, the most "
    said += f"{high:g}. {unmarked}".strip()
    with plots.style():
        figure, axes = plots.figure(width=7.0, height=2.8)
        edges = [most * n / 20 for n in range(21)]
        counts = [
            sum(a <= one < b or (b == edges[-1] and one >= b) for one in totals) for a, b in itertools.pairwise(edges)
        ]
        axes.bar(edges[:-1], counts, width=most / 20 * 0.92, align="edge", color=plots.PALETTE[0])
        axes.axvline(middle, color="black", linewidth=1.2, linestyle="--")
        axes.annotate(f" median {middle:g}", (middle, max(counts)), va="bottom", fontsize=8.5)
        axes.set(xlabel=f"points{so_far}, of {most:g}", ylabel="students", xlim=(0, most), ylim=(0, max(counts) * 1.18))
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.set_title(f"Half of the class has at least {middle:g} of {most:g} points{so_far}")
    return f"<h2>Distribution</h2>{_picture(figure, said)}<p>{_t(said)}</p>"


def _items(rows: list[items.ItemRow]) -> str:
    told = [
        (row.item, f"{row.out_of:g}", str(row.tried), _percent(row.mean), _percent(row.full),
         "" if row.discrimination is None else f"{row.discrimination:.2f}", str(row.waiting) if row.waiting else "")
        for row in rows
    ]  # fmt: skip
    heads = ("exercise", "points", "tried", "mean", "all points", "discrimination", "wait")
    note = (
        "Mean: share of the points, over those whose points are there; small for a hard exercise. Discrimination: "
        "correlation with the points of all other exercises; below 0.2 an exercise does not tell strong students from "
        f"weak ones. It is not said for fewer than {items.LEAST} students, or where all have the same."
    )
    known, picture = [row for row in rows if row.mean is not None], ""
    if known:
        hard = min(known, key=lambda row: row.mean)
        picture = _picture(_means(known, hard), f"Mean share of the points of each exercise; the least is {hard.item}.")
    return f"<h2>Exercises</h2>{picture}{_table(heads, told, numbers=range(1, 7))}<p class='small'>{note}</p>"


def _means(known: list[items.ItemRow], hard: items.ItemRow) -> Figure:
    with plots.style():
        figure, axes = plots.figure(width=7.0, height=0.9 + 0.27 * len(known))
        at = range(len(known))
        axes.barh(at, [row.mean for row in known], color=plots.PALETTE[0])
        axes.set_yticks(at, [row.item for row in known])
        axes.invert_yaxis()
        axes.set(xlim=(0, 1), xlabel="mean share of the points")
        axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        axes.set_title(f"The hardest: {hard.item}, {_percent(hard.mean)}")
    return figure


def _mistakes(answers: Sequence[Answer]) -> str:
    rows = items.mistakes(answers)
    if not rows:
        return ""
    told = [(name, mistake, str(count), _says(name, mistake)) for name, mistake, count, _ in rows]
    parts = [_table(("exercise", "mistake", "how often", "what feedback says"), told, numbers=[2])]
    parts.append(
        f"<p class='small'>Examples of the {min(EXAMPLES, len(rows))} most frequent: each is the shortest one of the "
        "class, without comments and docstrings.</p>"
    )
    for exercise, mistake, count, source in rows[:EXAMPLES]:
        if code := likeness.without_words(source):
            parts.append(f"<div class='pair'><h3>{_t(exercise)}: {_t(mistake)} ({count})</h3>{_code(code)}</div>")
    return "<h2>Mistakes by their names</h2>" + "".join(parts)


def _says(exercise: str, mistake: str) -> str:
    known = exercises.find(exercise)
    return next((one.says for one in known.mistakes if one.name == mistake), "") if known else ""


def _waiting(answers: Sequence[Answer]) -> str:
    rows = [(one.student, one.item, one.waits, one.why) for one in answers if one.waits]
    if not rows:
        return "<h2>Who waits</h2><p>Nobody.</p>"
    many: dict[tuple[str, str], list[str]] = {}  # what a GPU decides, and each answer in words: counted, not listed
    asked: dict[tuple[str, str], list[str]] = {}  # of a hand-in that nobody could read, all exercises have one reason
    for student, item, waits, why in rows:
        if waits == "a person" and why:
            asked.setdefault((student, why), []).append(item)
        else:
            many.setdefault((item, waits), []).append(student)
    parts = []
    if asked:
        people = [(student, _some(of_one), why) for (student, why), of_one in asked.items()]
        parts.append(_table(("student", "exercise", "why a person should look"), people))
    if many:
        told = [
            (item, waits, str(len(who)), _some(who) if waits == "a person" else "")
            for (item, waits), who in many.items()
        ]
        parts.append(_table(("exercise", "waits for", "students", "who"), told, numbers=[2]))
    return "<h2>Who waits</h2>" + "".join(parts)


def _odd(odd: Sequence[tuple[str, str]]) -> str:
    return f"<h2>What is odd about hand-ins</h2>{_table(('student', 'what'), odd)}" if odd else ""


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:NAMED]) + " ..." * (len(names) > NAMED)


def _board(answers: Sequence[Answer], names: dict[str, str]) -> str:
    boards, gpus = items.board(answers), items.timed_on(answers)
    if not boards:
        return ""
    said = (
        "Share of the reachable speed at the worst size, by pseudonym; the table beside this page says whose is whose. "
    )
    said += "Who writes <code># speed board: no</code> in any cell of code is left out."
    if len(gpus) > 1:
        kinds = ", ".join(f"{name} ({count})" for name, count in gpus.most_common())
        said += f" <strong>These were timed on different GPUs, so they do not compare: {_t(kinds)}.</strong>"
    parts = []
    for exercise, rows in boards.items():
        told = [(str(place), names[who], _percent(share), gpu) for place, (who, share, gpu) in enumerate(rows[:10], 1)]
        parts.append(f"<h3>{_t(exercise)}</h3>" + _table(("place", "who", "share", "GPU"), told, numbers=[0, 2]))
    return f"<h2>Speed board</h2><p>{said}</p>" + "".join(parts)


def _seconds(answers: Sequence[Answer]) -> str:
    took = items.seconds(answers)
    if not took:
        return ""
    rows = [
        (item, f"{statistics.median(one):.1f}", f"{max(one):.1f}", f"{sum(one) / 60:.1f}") for item, one in took.items()
    ]
    all_min = sum(map(sum, took.values())) / 60
    note = "The first exercise of a submission also starts its sandbox, so its time holds that start."
    return (
        f"<h2>What grading took</h2><p>{all_min:.1f} minutes in all, one after the other.</p>"
        + _table(("exercise", "median, s", "longest, s", "all, min"), rows, numbers=[1, 2, 3])
        + f"<p class='small'>{note}</p>"
    )


def _alike(answers: Sequence[Answer]) -> str:
    groups, usual = likeness.groups(answers)
    said = (
        "Answers whose syntax trees are nearly the same when names, strings, comments and layout are left out. They "
        "are there to look at, and no charge: an exercise may leave little choice, and students may work together "
        "where you allow it."
    )
    parts = [f"<p>{said}</p>"]
    if usual:
        ways = "; ".join(f"{name}: {many(count, 'student')}" for name, count in usual.items())
        rule = f"by more than {likeness.FEW} and more than a tenth of the class"
        parts.append(f"<p class='small'>Written in a usual way, {rule}, and not shown: {_t(ways)}.</p>")
    for group in groups:
        one, other, *others = group.answers
        title = f"{group.exercise}: {one.student} and {other.student}, {_percent(group.likeness)} alike"
        if others:
            title += f"; also {', '.join(answer.student for answer in others)}"
        both = "".join(f"<div class='wide' tabindex='0'>{_code(answer.source)}</div>" for answer in (one, other))
        parts.append(f"<div class='pair'><h3>{_t(title)}</h3><div class='two'>{both}</div></div>")
    if not groups:
        parts.append("<p>None were found.</p>")
    return "<h2>Answers that are alike</h2>" + "".join(parts)


# ------------------------------------------------------------------------------------------- pieces


def _t(text: str) -> str:
    """Text of any origin."""
    return escape(visible(text))


def _code(source: str) -> str:
    return f"<pre><code>{_t(source)}</code></pre>"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    kind = [" class='n'" if place in {*numbers} else "" for place in range(len(heads))]
    top = "".join(f"<th scope='col'{k}>{_t(head)}</th>" for k, head in zip(kind, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{k}>{marked(visible(cell))}</td>" for k, cell in zip(kind, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<div class='wide' tabindex='0'><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"


def _picture(figure, alt: str) -> str:
    data = base64.b64encode(plots.png(figure)).decode()
    return f"<img alt='{_t(alt)}' width='672' src='data:image/png;base64,{data}'>"
