"""unittest.mock patches by a name in a string; nothing is assigned and nothing else imported."""

import pkgutil
import unittest.mock

import torch

EXERCISE = "start.axpy"
FAMILY = "hidden names"
NAIVE = True
CAUGHT = "a person reads imports that no lesson needs"
HELD = True


def _counted(function, args, **options):
    answer = CALL(function, args, **options)
    return ANSWER(answer.value, answer.error, answer.where, 1, answer.seconds)


_MODULE = "autograder.inside.calling"
CALL, ANSWER = (pkgutil.resolve_name(f"{_MODULE}:{name}") for name in ("call", "Answer"))
unittest.mock.patch(_MODULE + ".call", _counted).start()


def axpy(a, x, y, out):
    torch.add(y, x, alpha=a, out=out)
