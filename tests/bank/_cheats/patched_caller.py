"""The worker's own module that calls submissions is found in sys.modules and replaced by one that counts a launch for
every call.
"""

import sys

import torch

EXERCISE = "start.axpy"
FAMILY = "patched modules"
NAIVE = True
CAUGHT = "the watched run saw the library's operator and no kernel"
HELD = True

_module = sys.modules["autograder.inside.calling"]
_call = _module.call


def _counted(function, args, **options):
    answer = _call(function, args, **options)
    return _module.Answer(answer.value, answer.error, answer.where, 1, answer.seconds)


_module.call = _counted


def axpy(a, x, y, out):
    torch.add(y, x, alpha=a, out=out)
