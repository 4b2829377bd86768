"""Answers that are nearly the same text, by their syntax trees: names, strings, comments and layout do not count.

This is something to look at, and no charge: short answers are often alike, and so are those that follow a lecture.
"""

from __future__ import annotations

import ast
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from autograder.classroom.overview.answers import Answer

LEAST_NODES = 60  # of a tree that is compared: shorter answers are alike because the exercise is short
MOST_TOLD = 3_000_000  # names and values of all subtrees: a long lesson has a tenth; deeper ones are compared with none
ALIKE = 0.9  # share of common parts
COMMON = 0.1  # of the class with the same tree: then it is the usual way to write this
FEW = 5  # so many may have copied it, whatever part of the class they are
SHOWN = 10  # pairs


@dataclass(frozen=True)
class Group:
    """Answers to one exercise of which each is like another one."""

    exercise: str
    answers: tuple[Answer, ...]  # the first two are the most alike
    likeness: float  # of these two


def plain(source: str) -> ast.Module | None:
    """The tree without docstrings and types."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        for without in {"annotation", "returns"} & {*node._fields}:
            setattr(node, without, None)
        for block in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, block, None), list):
                setattr(node, block, [one for one in statements if not _is_text(one)])
    return tree


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def given(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Names that the answer itself gives, beside those of variables: of attributes and methods, and of parameters."""
    attributes: set[str] = set()
    parameters: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            attributes |= {name for one in node.body if (name := getattr(one, "name", None))}
            fields = [one for one in node.body if isinstance(one, ast.Assign | ast.AnnAssign)]
            names = [one for field in fields for one in ast.walk(field) if isinstance(one, ast.Name)]
            attributes |= {one.id for one in names if isinstance(one.ctx, ast.Store)}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            attributes.add(node.attr)
        elif isinstance(node, ast.arg):
            parameters.add(node.arg)
    return attributes, parameters


def parts(source: str) -> Counter:
    """The subtrees, as hashes; empty where it is no Python or too short. Within each, a name that the answer gives and
    a string are replaced by the place of its first use there: who renames one, or moves a part, changes nothing."""
    tree = plain(source)
    if tree is None:
        return Counter()
    found, own, left = Counter(), given(tree), [MOST_TOLD]

    def visited(node: ast.AST) -> list[tuple[str, str]]:
        """What is told of a node and all within it, in order: whether it is replaced, and what it is."""
        told = [("", f"({type(node).__name__}"), *_told(node, *own)]
        for child in ast.iter_child_nodes(node):
            told += visited(child)
        told.append(("", ")"))
        left[0] -= len(told)
        if left[0] < 0:
            raise RecursionError
        first: dict[tuple[str, str], str] = {}
        text = [kind + first.setdefault((kind, what), str(len(first))) if kind else what for kind, what in told]
        found[hashlib.sha256(" ".join(text).encode(errors="replace")).hexdigest()[:12]] += 1
        return told

    try:
        visited(tree)
    except RecursionError:
        return Counter()
    return found if found.total() >= LEAST_NODES else Counter()


def _told(node: ast.AST, attributes: set[str], parameters: set[str]) -> list[tuple[str, str]]:
    """The name or the value of a node. Variables, attributes, names of parameters in calls and strings are renamed each
    by themselves."""
    if isinstance(node, ast.Name):
        return [("name", node.id)]
    if isinstance(node, ast.arg):
        return [("name", node.arg)]
    if isinstance(node, ast.Attribute):
        return [("attribute" if node.attr in attributes else "", node.attr)]
    if isinstance(node, ast.keyword):
        return [("keyword" if node.arg in parameters else "", str(node.arg))]
    if isinstance(node, ast.Constant):
        return [("string", node.value)] if isinstance(node.value, str) else [("", _written(node.value))]
    return []


def _written(value: object) -> str:
    return hex(value) if isinstance(value, int) else repr(value)  # Python writes no number of 5,000 digits in tens


def likeness(one: Counter, other: Counter) -> float:
    """Common parts over all parts: 1 for the same tree."""
    return (one & other).total() / max(1, (one | other).total())


def groups(answers: Sequence[Answer]) -> tuple[list[Group], dict[str, int]]:
    """The groups that are most alike; and exercise -> how many wrote it as at least a tenth of the class did."""
    found: list[Group] = []
    usual: dict[str, int] = {}
    for name in dict.fromkeys(one.name for one in answers if one.kind == "code"):
        mine = [(one, parts(one.source)) for one in answers if one.name == name and one.kind == "code" and one.source]
        mine = [(one, counts) for one, counts in mine if counts]
        same = Counter(frozenset(counts.items()) for _, counts in mine)
        often = {tree for tree, count in same.items() if count > max(FEW, COMMON * len(mine))}
        usual[name] = sum(same[tree] for tree in often)
        found += _grouped(name, [pair for pair in mine if frozenset(pair[1].items()) not in often])
    found.sort(key=lambda group: (-group.likeness, group.exercise, group.answers[0].student))
    return found[:SHOWN], {name: count for name, count in usual.items() if count}


def _grouped(name: str, mine: list[tuple[Answer, Counter]]) -> list[Group]:
    mine = sorted(mine, key=lambda pair: pair[1].total())
    near: list[tuple[float, Answer, Answer]] = []
    for at, (one, counts) in enumerate(mine):
        for other, others in mine[at + 1 :]:
            if counts.total() < ALIKE * others.total():  # from here on all are larger
                break
            if (alike := likeness(counts, others)) >= ALIKE:
                near.append((alike, one, other))
    near.sort(key=lambda pair: (-pair[0], pair[1].student, pair[2].student))
    of: dict[str, tuple[float, list[Answer]]] = {}  # student -> the group, and how alike its first two are
    for alike, one, other in near:
        mine = [of.get(answer.student, (alike, [answer])) for answer in (one, other)]
        (most, first), (_, second) = sorted(mine, key=lambda group: (-group[0], -len(group[1])))
        if first is second:
            continue
        first += second
        of |= dict.fromkeys((answer.student for answer in first), (most, first))
    found = {id(group): Group(name, tuple(group), most) for most, group in of.values()}
    return [*found.values()]


def without_words(source: str) -> str:
    """The code as it is run: comments and docstrings, which may name people, are left out."""
    try:
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(body := getattr(node, "body", None), list):
                node.body = [one for one in body if not _is_text(one)] or [ast.Pass()]
        return ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
