"""What a watched call reports: operators of every thread, launches, and what was left running."""

import contextlib
import os
import threading
import time

import pytest
import torch

from autograder import bank
from autograder.inside import watch
from course_lib.device import DEVICE, TIER

GPU = TIER == "gpu"


def seen_of(function, *args):
    answer, seen = watch.watched(function, args)
    assert answer.error is None, answer.error
    return seen


def axpy_arguments(n=3000):
    x = torch.ones(n, device=DEVICE)
    return 2.0, x, torch.ones(n, device=DEVICE), torch.empty(n, device=DEVICE)


def test_a_vendor_operator_is_seen():
    assert seen_of(torch.softmax, torch.ones(3, 4), 1)["operators"]["aten::_softmax"] == 1


def test_an_operator_in_another_thread_is_seen():
    def function(x):
        thread = threading.Thread(target=torch.softmax, args=(x, 1))
        thread.start()
        thread.join()

    assert seen_of(function, torch.ones(3, 4))["operators"]["aten::_softmax"] == 1


def test_an_operator_in_a_thread_that_was_there_before_is_seen():
    go, done = threading.Event(), threading.Event()

    def serve():
        go.wait(10)
        torch.softmax(torch.ones(3, 4), 1)
        done.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()

    def function():
        go.set()
        done.wait(10)

    assert seen_of(function)["operators"]["aten::_softmax"] == 1
    thread.join()


def test_an_operator_below_every_mode_is_seen():
    def function(x):
        with torch._C._DisableTorchDispatch(), torch.inference_mode():
            torch.ops.aten._softmax.default(x, 1, False)

    assert seen_of(function, torch.ones(3, 4))["operators"]["aten::_softmax"] == 1


def test_a_range_that_the_code_named_itself_is_no_operator():
    def function():
        with torch.autograd.profiler.record_function("aten::made_up"):
            pass

    assert "aten::made_up" not in seen_of(function)["operators"]


def test_launches_are_told_by_name_with_their_grids():
    axpy = bank.find("start.axpy/right/masked").function
    args = axpy_arguments()
    axpy(*args)
    seen = seen_of(axpy, *args)
    assert seen["kernels"] == {"_axpy_kernel": 1}
    assert seen["programs"] == [["_axpy_kernel", [6, 1, 1]]]
    assert seen["blind"] == ""
    assert seen["device"] == ({"_axpy_kernel": 1} if GPU else {})


def test_operators_for_which_a_report_has_no_room_are_counted():
    library = torch.library.Library("speed_of_light_flood", "DEF")
    for n in range(watch.SHOWN + 5):
        library.define(f"f{n}(Tensor x) -> Tensor")
        library.impl(f"f{n}", torch.clone, "CPU")

    def flood(x):
        for n in range(watch.SHOWN + 5):
            getattr(torch.ops.speed_of_light_flood, f"f{n}")(x)

    seen = seen_of(flood, torch.ones(1))
    assert len(seen["operators"]) == watch.SHOWN and seen["dropped"] >= 5
    assert seen_of(torch.neg, torch.ones(1))["dropped"] == 0


def test_what_we_dispatch_ourselves_is_not_reported():
    assert watch.CANARY not in seen_of(lambda: None)["operators"]
    assert seen_of(lambda x: torch.hypot(x, x), torch.ones(2))["operators"][watch.CANARY] == 1


def test_a_profiler_that_is_switched_off_leaves_us_blind_and_says_so():
    seen = seen_of(torch.autograd._disable_profiler)
    assert seen["blind"]


def test_a_profiler_that_is_already_in_use_hides_nothing():
    # torch 2.11 raises at the end of a profiler that another one has ended
    with contextlib.suppress(RuntimeError), torch.autograd.profiler.profile(use_kineto=True):
        seen = seen_of(torch.softmax, torch.ones(3, 4), 1)
    assert seen["blind"] or seen["operators"]["aten::_softmax"] == 1


def test_an_exception_is_an_answer_and_the_profiler_ends():
    def function():
        raise KeyError("lost")

    answer, _ = watch.watched(function, ())
    assert "KeyError" in answer.error
    assert not torch.autograd._profiler_enabled()


def test_a_thread_left_over_is_counted():
    stop = threading.Event()
    before = seen_of(lambda: None)["threads"]
    during = seen_of(lambda: threading.Thread(target=stop.wait, daemon=True).start())["threads"]
    stop.set()
    assert during == before + 1


@pytest.mark.parametrize(
    ("others", "beside", "left"),
    [
        ({}, 0, 0),
        ({7: "me", 9: 7}, 0, 2),  # a child and its child
        ({7: 1, 9: 7}, 0, 1),  # a daemon
        ({7: 1, 8: 1, 9: 7, 10: 9}, 2, 0),  # two other workers, and the compiler that one of them has started
        ({7: 1, 8: 1, 9: 1, 10: "me"}, 2, 2),  # two other workers, a daemon, a child
    ],
)
def test_a_process_left_over_is_counted(others, beside, left, monkeypatch):
    me = os.getpid()
    there = {pid: me if parent == "me" else parent for pid, parent in others.items()}
    monkeypatch.setattr(watch, "_parents", lambda: {1: 0, me: 1} | there)
    assert watch.processes(beside) == left


def test_processes_are_read_with_their_parents():
    assert watch._parents()[os.getpid()] == os.getppid()


def test_watching_is_cheap():
    """A few hundred microseconds on a CPU; the bound is wide, because what is counted has coarse steps."""
    seen_of(lambda: None)
    start = time.process_time()
    seen_of(lambda: None)
    assert time.process_time() - start < 0.5


@pytest.mark.gpu
def test_a_vendor_kernel_is_seen_on_the_device():
    x = torch.ones(512, 512, device="cuda")
    seen = seen_of(lambda x: torch.softmax(x, 1), x)
    assert any("softmax" in name.lower() for name in seen["device"])


@pytest.mark.gpu
def test_copies_and_fills_run_under_their_own_names():
    x = torch.ones(512, 512, device="cuda")
    seen = seen_of(lambda x: torch.empty_like(x).copy_(x).zero_(), x)
    assert seen["device"] and not any("softmax" in name for name in seen["device"])
