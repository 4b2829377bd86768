"""The cells never end: they take over the channel, say that they are done, and answer every order themselves, the
watched run included.

NAIVE is False: in one process there is no channel.
"""

import gc
import sys

import torch

EXERCISE = "start.axpy"
FAMILY = "result channel"
NAIVE = False
CAUGHT = "a person reads who opens sockets and frames; kernels that are named but not defined are missed"
HELD = True

SEEN = {
    "operators": {},
    "kernels": {"_axpy_kernel": 1},
    "device": {"_axpy_kernel": 1},
    "programs": [["_axpy_kernel", [16, 1, 1]]],
    "threads": 0,
    "processes": 0,
}
CHANNELS = [
    one for one in gc.get_objects() if type(one).__name__ == "Channel" and hasattr(one, "receive_with_descriptors")
]


def _answer(channel, order, descriptors):
    open_tensor = sys.modules["channel"].open_tensor
    a, x, y, out = (
        open_tensor(one, descriptors[one["descriptor"]]) if isinstance(one, dict) else one for one in order["args"]
    )
    torch.add(y, x, alpha=a, out=out)
    report = {"error": None, "where": None, "launches": 1, "seconds": 1e-4, "seen": SEEN}
    channel.send(report | SEEN)


def _serve(channel):
    channel.send({"troubles": [], "callable": True, "defined": True})
    while True:
        order, descriptors = channel.receive_with_descriptors()
        _answer(channel, order, descriptors)


if CHANNELS and "channel" in sys.modules:
    _serve(CHANNELS[-1])


def axpy(a, x, y, out):
    out.zero_()
