"""A dispatcher at work on a scenario of plain data: which kernels ran, with which keys, and what went wrong.

A scenario has `keys`, highest priority first; `kernels`, what is registered; and `steps`, what a program does:

    {"call": "op", "args": [["Autograd", "CPU"], ["CPU"]]}       the keys of each argument
    {"within": ["exclude", "Autograd"], "steps": [...]}          or ["include", key]
    {"other": True, "steps": [...]}                              the same on a second dispatcher, made beside the first

A kernel notes that it ran and then does what its `then` says, inside the contexts of its `within`: "return", "raise",
"call" (`op`, with its own arguments) or "redispatch" (`op`, with its keys less `drop`). `catch`: errors end there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

TOO_MANY = 60  # kernels in one scenario: none that is meant runs a third of it


class KernelError(Exception):
    """What a kernel raises that was told to."""


@dataclass(frozen=True)
class Argument:
    keys: frozenset[str]


class _Run:
    def __init__(self, make: Callable, scenario: Mapping[str, Any]):
        self.order, self.log = scenario["keys"], []
        self.first, self.second = (make(list(scenario["keys"])) for _ in range(2))
        for dispatcher in (self.first, self.second):
            for entry in scenario["kernels"]:
                if entry["then"] == "fallthrough":
                    dispatcher.fallthrough(entry["op"], entry["key"])
                else:
                    dispatcher.register(entry["op"], entry["key"], self.kernel(entry))

    def kernel(self, entry: Mapping[str, Any]) -> Callable:
        def run(dispatcher, keys, *args):
            if len(self.log) >= TOO_MANY:
                raise RecursionError(f"more than {TOO_MANY} kernels ran")
            self.log.append([entry["op"], entry["key"], self.sorted(keys)])
            with ExitStack() as contexts:
                for kind, key in entry.get("within", ()):
                    contexts.enter_context(getattr(dispatcher, kind)(key))
                return self.act(entry, dispatcher, frozenset(keys), args)

        return run

    def act(self, entry: Mapping[str, Any], dispatcher, keys: frozenset[str], args: Sequence[Argument]) -> str:
        try:
            if entry["then"] == "raise":
                raise KernelError(entry["key"])
            if entry["then"] == "call":
                return dispatcher.call(entry["op"] if "to" not in entry else entry["to"], *args)
            if entry["then"] == "redispatch":
                return dispatcher.redispatch(entry["op"], keys - set(entry["drop"]), *args)
        except (KernelError, LookupError) as error:
            if not entry.get("catch"):
                raise
            self.log.append(["caught", _kind(error)])
        return f"{entry['op']} by {entry['key']}"

    def sorted(self, keys) -> list[str]:
        return sorted(map(str, keys), key=lambda key: (self.order.index(key) if key in self.order else -1, key))

    def steps(self, steps: Sequence[Mapping[str, Any]], dispatcher) -> None:
        for step in steps:
            if "call" in step:
                self.call(step, dispatcher)
            elif "within" in step:
                kind, key = step["within"]
                with getattr(dispatcher, kind)(key):
                    self.steps(step["steps"], dispatcher)
            else:
                self.steps(step["steps"], self.second)

    def call(self, step: Mapping[str, Any], dispatcher) -> None:
        try:
            value = dispatcher.call(step["call"], *[Argument(frozenset(keys)) for keys in step["args"]])
            self.log.append(["returned", value if isinstance(value, str) else type(value).__name__])
        except (KernelError, LookupError, RecursionError) as error:
            self.log.append(["raised", _kind(error)])


def _kind(error: Exception) -> str:
    kinds = (KernelError, RecursionError, LookupError)
    return next(kind.__name__ for kind in kinds if isinstance(error, kind))


def ran(make: Callable, scenario: Mapping[str, Any]) -> list[list]:
    """What happened, in order."""
    run = _Run(make, scenario)
    run.steps(scenario["steps"], run.first)
    return run.log
