"""Answers that are nearly the same text, by their syntax trees: names, comments and layout do not count.

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
ALIKE = 0.9  # share of common parts
COMMON = 0.1  # of the class with the same tree: then it is the usual way to write this
SHOWN = 10  # pairs


@dataclass(frozen=True)
class Group:
    """Answers to one exercise of which each is like another one."""

    exercise: str
    answers: tuple[Answer, ...]  # the first two are the most alike
    likeness: float  # of these two


def normalised(source: str) -> ast.Module | None:
    """The tree with each name replaced by the order of its first use, and without docstrings."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: dict[str, str] = {}

    def plain(name: str) -> str:
        return names.setdefault(name, f"n{len(names)}")

    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = plain(node.id)
        elif isinstance(node, ast.arg):
            node.arg, node.annotation = plain(node.arg), None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            node.name = plain(node.name)
        for block in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, block, None), list):
                setattr(node, block, [one for one in statements if not _is_text(one)])
    return tree


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def parts(source: str) -> Counter:
    """The subtrees of the normalised tree, as hashes; empty where it is no Python or too short."""
    tree = normalised(source)
    if tree is None:
        return Counter()
    found: Counter = Counter()

    def visited(node: ast.AST) -> str:
        inner = "".join(visited(child) for child in ast.iter_child_nodes(node))
        told = getattr(node, "id", getattr(node, "arg", getattr(node, "attr", "")))
        told = repr(node.value) if isinstance(node, ast.Constant) else told
        digest = hashlib.sha256(f"{type(node).__name__}({told}){inner}".encode()).hexdigest()[:12]
        found[digest] += 1
        return digest

    try:
        visited(tree)
    except RecursionError:
        return Counter()
    return found if found.total() >= LEAST_NODES else Counter()


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
        often = {tree for tree, count in same.items() if count > max(2, COMMON * len(mine))}
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
    of: dict[str, list[Answer]] = {}  # student -> the group
    best: dict[int, float] = {}
    for alike, one, other in near:
        first, second = of.get(one.student, [one]), of.get(other.student, [other])
        if first is second:
            continue
        best.setdefault(id(first), alike)
        first += second
        of |= dict.fromkeys((answer.student for answer in first), first)
    lists = {id(group): group for group in of.values()}
    return [Group(name, tuple(group), best[key]) for key, group in lists.items()]


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
