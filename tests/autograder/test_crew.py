"""Exercises on several ranks for the referee: workers of one sandbox, judged by what they report and what passed."""

import shutil
import socket
import time
from dataclasses import replace

import pytest

from autograder import bank
from autograder.bank import cheats
from autograder.exercise import get, of_unit
from autograder.judging.ranks import too_little_or_too_much
from autograder.referee.crew import stood
from autograder.referee.meeting import meeting
from autograder.referee.referee import Patience, Referee
from autograder.referee.submission import Cell, Submission

needs_bubblewrap = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
RANKED = [exercise for exercise in of_unit("ddp") if exercise.kind == "distributed"]
RING = get("ddp.ring")
HONEST = bank.find("ddp.ring/right/background").source
CALL_S = 8.0  # two processors that are busy with something else need seconds for four ranks to meet


def of_bank(path):
    return bank.find(path).source


def only(exercise, *names):
    """The exercise with some of its cases."""
    return replace(exercise, cases=tuple(case for case in exercise.cases if case.name in names))


@pytest.fixture(scope="module")
def there():
    """A referee for many submissions: one room of warm processes, which takes longer to start than a verdict."""
    with Referee(Submission(()), patience=Patience(20.0, CALL_S)) as referee:
        yield referee


@pytest.fixture
def judged(there):
    def judge(source, exercise=RING, names=("two ranks",), call_s=CALL_S):
        there.verdicts.clear()
        there.room.submission, there.room.patience = Submission((Cell("a cell", source),)), Patience(20.0, call_s)
        return there.examine(only(exercise, *names) if names else exercise, seed=7)

    return judge


def why(verdict):
    return [case.why for case in verdict.cases if not case.right] or verdict.note


# ------------------------------------------------------------------------------------------- verdicts


@pytest.mark.slow
@needs_bubblewrap
def test_a_ring_is_judged_on_every_case(judged):
    verdict = judged(HONEST, names=())
    assert verdict.accepted and verdict.points == RING.points, why(verdict)


@needs_bubblewrap
@pytest.mark.parametrize("exercise", [one for one in RANKED if one is not RING], ids=lambda one: one.name)
def test_training_is_judged_where_much_and_where_little_travels(judged, exercise):
    source = bank.entries([exercise.name], ["right"])[0].source
    verdict = judged(source, exercise, ("two ranks", "large layers"))
    assert verdict.accepted and not verdict.held, why(verdict)


@needs_bubblewrap
@pytest.mark.slow
@pytest.mark.parametrize("entry", [e for e in bank.entries([one.name for one in RANKED]) if e.kind == "right"], ids=str)
def test_every_right_answer_of_the_bank_gets_its_points(judged, entry):
    exercise = get(entry.exercise)
    verdict = judged(entry.source, exercise, ())
    assert verdict.points == exercise.points, why(verdict)


NAMED = {
    "ddp.ring/mistakes/wrong_owner": "three ranks",
    "ddp.ring/mistakes/overwritten": "three ranks",
    "ddp.ring/mistakes/collective": "two ranks",
    "ddp.naive/mistakes/sum_for_mean": "two ranks",
    "ddp.naive/mistakes/no_start": "two ranks",
    "ddp.buckets/mistakes/begins_in_finish": "two ranks",
    "ddp.sharded/mistakes/forgets": "two ranks",
}


@needs_bubblewrap
@pytest.mark.parametrize("path", NAMED)
def test_a_mistake_has_its_name_from_outside_too(judged, path):
    name, _, mistake = path.split("/")
    verdict = judged(of_bank(path), get(name), (NAMED[path],))
    assert not verdict.points and verdict.diagnosis.mistake == mistake, why(verdict)


# ------------------------------------------------------------------------------------------- how it can end

ONE_IN_TWO = (
    "import os, time, torch, torch.distributed as dist\ndef ring_all_reduce(buffer):\n    rank = dist.get_rank()\n"
)
ENDS = {
    "raises": ("    if rank == 1: raise KeyError('left')\n    dist.recv(buffer, 1)", "KeyError: 'left' (rank 1 of 2"),
    "ends": ("    if rank == 0: os._exit(3)\n    dist.recv(buffer, 0)", "rank 0 of 2: the process ended"),
    "crashes": (
        "    if rank == 1: os.kill(os.getpid(), 11)\n    dist.recv(buffer, 1)",
        "rank 1 of 2: the process ended",
    ),
    "diverges": (HONEST.split("world_size()")[1] + "    buffer += rank", "is not the sum"),
    "wrong shape": ("    buffer.resize_(3)", "has shape (3,)"),
    "leaves the group": ("    dist.destroy_process_group()", "raised"),
}


@needs_bubblewrap
@pytest.mark.parametrize("name", ENDS)
def test_however_a_rank_ends_there_is_a_verdict_at_once_and_the_next_finds_everything_in_order(judged, name):
    body, says = ENDS[name]
    started = time.monotonic()
    if name == "diverges":
        body = "    ranks = dist.get_world_size()" + body
    verdict = judged(ONE_IN_TWO + body, call_s=300.0)
    took = time.monotonic() - started
    assert verdict.points == 0 and says in why(verdict)[0]
    assert took < 100, "it waited for the time limit"
    assert judged(HONEST).accepted


@needs_bubblewrap
def test_ranks_that_wait_for_each_other_end_with_their_lines_and_cost_one_time_limit(judged):
    hang = ONE_IN_TWO + "    dist.recv(buffer, 1 - rank)"
    verdict = judged(hang, names=("two ranks", "three ranks", "four ranks"), call_s=3.0)
    assert "did not end in 3 s" in verdict.cases[0].why
    assert "rank 1 was at line 4 in ring_all_reduce: dist.recv(buffer, 1 - rank)" in verdict.cases[0].why
    assert all(case.why.startswith("not tried") for case in verdict.cases[1:])
    assert judged(HONEST).accepted


JUNK = {
    "nothing": {"rank": None},
    "zero": {"rank": 0},
    "no report": {"error": None},
    "empty error": {"error": ""},
    "a list": {"rank": [1]},
    "nameless object": {"rank": {"$": "class", "of": "os.system"}},
    "no traffic": {"rank": {"$": "dict", "items": [["value", 1]]}},
    "traffic in no shape": {
        "rank": {"$": "dict", "items": [["value", 1], ["traffic", {"$": "dict", "items": [["sent", 1]]}]]}
    },
    "size without memory": {"rank": {"$": "tensor", "dtype": "float32", "shape": [2**62, 2**62, 0], "data": ""}},
    "deep": {"rank": [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]},
}
SENDS = """
import json, os, stat, struct, time
def ring_all_reduce(buffer):
    data = json.dumps({junk!r}).encode()
    for number in range(3, 64):  # whatever is a socket may be the one to the referee
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, struct.pack("!I", len(data)) + data)
        except OSError:
            pass
    time.sleep(60)
"""


@needs_bubblewrap
def test_junk_in_place_of_a_report_is_a_verdict(judged):
    for name, junk in JUNK.items():
        verdict = judged(SENDS.format(junk=junk))
        assert verdict.points == 0 and why(verdict), name
        assert "did not end" not in why(verdict)[0], name
    assert judged(HONEST).accepted


# ------------------------------------------------------------------------------------------- the network


@needs_bubblewrap
def test_the_loopback_of_a_sandbox_is_not_that_of_the_machine(judged):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        tries = f"""
import socket
def ring_all_reduce(buffer):
    seen = [name for _, name in socket.if_nameindex()]
    for address in ("127.0.0.1", "{socket.gethostbyname(socket.gethostname())}", "1.1.1.1"):
        try:
            socket.create_connection((address, {port}), 1.0)
            seen.append(address)
        except OSError:
            pass
    raise RuntimeError(f"reached {{seen}}")
"""
        verdict = judged(tries)
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert "reached ['lo'] " in why(verdict)[0]


@needs_bubblewrap
def test_what_ranks_hide_from_the_watch_is_counted_outside(judged):
    verdict = judged(of_bank("ddp.ring/cheats/gathered_out_of_sight"), names=("a megabyte",))
    assert not verdict.points and not verdict.held and "some of it was hidden" in why(verdict)[0]


@needs_bubblewrap
def test_what_did_not_pass_the_network_earns_nothing(judged):
    verdict = judged(of_bank("ddp.ring/cheats/shards_through_files_only"))
    assert not verdict.points and not verdict.held and "something went another way" in why(verdict)[0]


@needs_bubblewrap
def test_a_forged_report_with_the_right_number_of_bytes_waits_for_a_person(judged):
    verdict = judged(of_bank("ddp.ring/cheats/report_forged"), names=("a megabyte",))
    assert not verdict.points and verdict.held
    assert "_get_backend" in verdict.note


def reports(told, passed=None, ranks=2, messages=1):
    traffic = {"sent": {1: [messages, told // ranks]}, "collectives": [], "notes": []}
    return [{"value": 0, "traffic": traffic | ({} if passed is None else {"passed": passed})} for _ in range(ranks)]


def test_bytes_that_are_too_few_or_too_many_are_told_apart_from_headers():
    mib = 1 << 20
    assert too_little_or_too_much(reports(mib), mib) is None
    assert too_little_or_too_much(reports(mib, passed=mib), mib) is None
    assert too_little_or_too_much(reports(mib, passed=int(1.2 * mib)), mib) is None
    assert "another way" in too_little_or_too_much(reports(mib - 2), mib)
    assert "another way" in too_little_or_too_much(reports(mib, passed=int(0.8 * mib)), mib)
    assert "hidden" in too_little_or_too_much(reports(mib, passed=int(1.4 * mib)), mib)
    assert too_little_or_too_much(reports(0, passed=5000), 0) is None


@pytest.mark.parametrize(("name", "factor"), [("allreduce", 2), ("broadcast", 1), ("reduce_scatter_base", 1)])
def test_a_collective_costs_what_it_sends_at_least(name, factor):
    traffic = {"sent": {}, "collectives": [[name, 1000, False], ["step", -1, False]], "notes": []}
    got = [{"value": 0, "traffic": traffic} for _ in range(4)]
    assert too_little_or_too_much(got, factor * 3 * 1000) is None
    assert too_little_or_too_much(got, factor * 3 * 1000 + 1)


def test_no_honest_answer_of_the_bank_leads_past_the_network_and_torchs_own_does():
    for entry in bank.entries([one.name for one in RANKED]):
        if entry.kind == "right":
            assert not meeting((Cell("a cell", entry.source),)), entry
    for source in (
        "import socket",
        "import torch.multiprocessing",
        "open('/tmp/x')",
        "from torch.nn.parallel import DistributedDataParallel as D",
        "import torch\ntorch.nn.parallel.DistributedDataParallel",
        "from torch.distributed import distributed_c10d as c\nc._get_default_group()",
        "from course_lib.parallel import Naive",
    ):
        assert meeting((Cell("a cell", source),)), source
    assert not meeting((Cell("setup of the lesson", "import socket"),))


def test_the_last_stack_that_a_rank_wrote_says_where_it_was():
    cells = (Cell("solution", "def f(x):\n    g(x)\n    wait()\n"),)
    printed = 'Stack (most recent call first):\n  File "<solution>", line 2 in f\n'
    printed += 'Timeout!\nThread 0x1 (most recent call first):\n  File "/usr/lib/x.py", line 9 in wait\n'
    assert stood(printed + '  File "<solution>", line 3 in f\n', cells) == "at line 3 in f: wait()"
    assert stood(printed + '  File "<solution>", line 99 in f\n', cells) == ""
    assert stood("", cells) == ""


def test_the_bank_has_cheats_for_ranks_of_several_kinds():
    found = cheats.cheats([one.name for one in RANKED])
    assert len(found) >= 8 and len({cheat.family for cheat in found}) >= 4
