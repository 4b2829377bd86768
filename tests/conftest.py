"""Settings for every test: one tier a process, fixed seeds, no window, a Triton cache of its own."""

import os
import shutil
import tempfile

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Kernels compiled by an earlier run must not hide that a kernel no longer compiles. Test processes share the first's.
os.environ.setdefault("TRITON_CACHE_DIR", f"{tempfile.gettempdir()}/triton-cache-{os.getpid()}")

# Before any test imports triton: this chooses between the compiler and the interpreter for the whole process.
import numpy
import pytest
import torch

from course_lib.device import DEVICE

torch.set_num_threads(1)
with torch.device("cpu"):  # torch notes which functions make tensors when it first needs to: before a test replaces one
    torch.empty(0)


def pytest_unconfigure():
    if os.environ["TRITON_CACHE_DIR"].endswith(f"triton-cache-{os.getpid()}"):
        shutil.rmtree(os.environ["TRITON_CACHE_DIR"], ignore_errors=True)


def pytest_collection_modifyitems(items):
    if DEVICE == "cuda":
        return
    skip = pytest.mark.skip(reason="needs a CUDA device, and this machine has none")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def fixed_seeds():
    torch.manual_seed(0)
    numpy.random.seed(0)
