"""Unit 08: what several ranks report, how it is judged, and that a rank that fails, ends or hangs is a verdict."""

import os
import time
from dataclasses import replace
from statistics import median

import pytest
import torch
import torch.distributed as dist

from autograder import bank
from autograder.bank import seeds
from autograder.call import in_ranks
from autograder.call.in_process import examine
from autograder.exercise import Draw, get, of_unit
from autograder.exercises.ddp import replicas
from autograder.exercises.ddp.averaging import LIMIT_FP32, cases, floor, segments, values_off
from autograder.exercises.ddp.buckets import needed
from autograder.exercises.ddp.cost_mistakes import ADDED, HIDDEN, LIMITS, right
from autograder.exercises.ddp.ring import limits
from autograder.exercises.ddp.ring_mistakes import CUTS, ring
from autograder.inside.probes.network import CHANGED, GAPS, NOT_WAITED, mark, watched
from autograder.inside.probes.replicas import REACHED
from autograder.judging.ranks import first_off, reports_of, same_bits
from autograder.live import check
from course_lib.distributed import launch
from course_lib.parallel import Buckets, Flat, Naive, Overlap, Sharded

NAMES = [exercise.name for exercise in of_unit("ddp")]
RING = get("ddp.ring")


def right_ring():
    return bank.find("ddp.ring/right/background").function


# ------------------------------------------------------------------------------------------- the network, seen


def seen_by(function, size: int = 2) -> list[dict]:
    def called(rank):
        with watched() as traffic:
            function(rank)
        return traffic.plain()

    return launch(called, size, "gloo")


def test_sends_are_counted_by_receiver_and_collectives_by_name_and_bytes():
    def talk(rank):
        if rank == 0:
            dist.send(torch.ones(5), 1)
            dist.isend(torch.ones(3, dtype=torch.float64), 1).wait()
        else:
            for one in (torch.empty(5), torch.empty(3, dtype=torch.float64)):
                dist.recv(one, 0)
        dist.all_reduce(torch.ones(7))
        dist.barrier()

    zero, one = seen_by(talk)
    assert zero["sent"] == {1: [2, 44]} and one["sent"] == {}
    assert zero["collectives"] == one["collectives"]
    assert one["collectives"][0] == ["allreduce", 28, False] and one["collectives"][1][0] == "barrier"
    assert zero["notes"] == one["notes"] == []


def test_ddp_is_seen_too_although_it_calls_from_elsewhere():
    def train(rank):
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        model(torch.ones(2, 4)).sum().backward()

    names = [name for name, _, _ in seen_by(train)[0]["collectives"]]
    assert "allreduce" in names and "broadcast" in names


def test_what_is_received_is_nan_until_it_was_waited_for():
    def talk(rank):
        if rank == 0:
            dist.send(torch.ones(3), 1)
        else:
            came = torch.zeros(3)
            work = dist.irecv(came, 0)
            time.sleep(0.2)
            assert came.isnan().all()
            work.wait()
            assert came.tolist() == [1, 1, 1]

    assert [one["notes"] for one in seen_by(talk)] == [[], []]


def test_a_change_while_sending_and_a_forgotten_wait_are_noted():
    def talk(rank):
        if rank == 0:
            tensor = torch.ones(3)
            work = dist.isend(tensor, 1)
            tensor += 1
            work.wait()
            dist.isend(torch.ones(2), 1)
        else:
            dist.recv(torch.empty(3), 0)
            dist.recv(torch.empty(2), 0)

    assert [one["notes"] for one in seen_by(talk)] == [[CHANGED, NOT_WAITED], []]


def test_the_future_of_what_runs_in_the_background_can_be_waited_for_too():
    def talk(rank):
        both = [torch.full((3,), 1.0 + rank), torch.full((2,), 2.0 * rank)]
        works = [dist.all_reduce(one, async_op=True) for one in both]
        mean = works[0].get_future().then(lambda future: future.value()[0].div_(2))
        assert mean.wait() is not None and both[0].tolist() == [1.5] * 3
        works[1].wait()
        assert both[1].tolist() == [2.0] * 2
        works[1].get_future().wait()
        assert both[1].tolist() == [2.0] * 2

    assert [one["notes"] for one in seen_by(talk)] == [[], []]


@pytest.mark.parametrize("works", [2, 1])
def test_a_batch_is_begun_as_one_and_watched_like_its_parts(works):
    """NCCL has one queue for what two ranks send each other, and gives one work for a whole batch."""
    torchs, begun = dist.batch_isend_irecv, []

    class All(list):
        def wait(self):
            while self:  # gloo's can be waited for once
                self.pop().wait()

    def as_nccl(operations):
        begun.append([one.op.__name__ for one in operations])
        found = torchs(operations)
        return found if works == 2 else [All(one.work for one in found)]

    def swap(rank):
        mine, came = torch.full((3,), float(rank)), torch.zeros(3)
        operations = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, came, 1 - rank)]
        work = dist.batch_isend_irecv(operations)
        assert came.isnan().all()
        mine += rank
        for one in work[: 2 - rank]:
            one.wait()
        assert came.isnan().all() == bool(rank)

    def called(rank):
        dist.batch_isend_irecv = as_nccl
        with watched() as traffic:
            swap(rank)
        return begun, traffic.plain()

    for rank, (what, seen) in enumerate(launch(called, 2, "gloo")):
        assert what == [["isend", "irecv"]] and seen["sent"] == {1 - rank: [1, 12]}
        assert seen["notes"] == ([CHANGED, NOT_WAITED] if rank else [])


@pytest.mark.parametrize("receives_first", [False, True])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_batch_that_receives_into_what_it_sends_is_wrong_for_certain(receives_first, backwards):
    def called(rank):
        with watched() as traffic:
            both = torch.full((3,), float(rank))
            kinds = (dist.irecv, dist.isend) if receives_first else (dist.isend, dist.irecv)
            works = dist.batch_isend_irecv([dist.P2POp(kind, both, 1 - rank) for kind in kinds])
            for work in works[:: -1 if backwards else 1]:
                work.wait()
        return both.isnan().all().item() or CHANGED in traffic.notes

    told = launch(called, 2, "gloo")
    # a send may go out after what came, so that one rank gets its own number back; the other does not
    assert all(told) if receives_first else any(told)


def test_gloo_takes_no_gaps_where_nccl_would_not():
    def talk(rank):
        across, images = torch.ones(3, 2).T, torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
        for background in (False, True):
            for gaps in (across, torch.ones(8)[::2]):
                with pytest.raises(ValueError, match=GAPS):
                    dist.all_reduce(gaps, async_op=background)
            with pytest.raises(ValueError, match=GAPS):
                dist.all_gather_into_tensor(torch.ones(4, 3).T, torch.ones(3, 2), async_op=background)
        with pytest.raises(ValueError, match=GAPS):
            dist.broadcast(across, 0)
        with pytest.raises(ValueError, match=GAPS):
            dist.all_gather([torch.empty(2, 3), torch.empty(3, 2).T], torch.ones(2, 3))
        dist.all_reduce(images)
        dist.all_reduce(across.contiguous())

    assert [name for name, _, _ in seen_by(talk)[0]["collectives"]] == ["allreduce"] * 2


def test_a_mark_that_ends_nothing_leaves_what_runs_in_the_background_alone():
    def talk(rank):
        for ends in (True, False):
            work = dist.all_reduce(torch.ones(2), async_op=True)
            mark("here", ends)
            work.wait()

    assert [held for _, nbytes, held in seen_by(talk)[0]["collectives"] if nbytes > 0] == [True, False]


def test_outside_of_the_watch_everything_is_torchs_own():
    before = dist.isend, dist.irecv, dist.batch_isend_irecv, dist.distributed_c10d.isend
    with watched():
        assert dist.isend is not before[0]
    with pytest.raises(ZeroDivisionError), watched():
        raise ZeroDivisionError
    assert (dist.isend, dist.irecv, dist.batch_isend_irecv, dist.distributed_c10d.isend) == before


# ------------------------------------------------------------------------------------------- judged


def test_elements_ranks_and_forms_that_are_off_are_found():
    want = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert first_off(torch.tensor([1.0, 2.0, float("nan")]), want, 1e-6) == 2
    assert first_off(want.float(), want, torch.tensor([0.0, 0.0, 0.0])) is None
    assert same_bits([torch.zeros(2), torch.zeros(2), -torch.zeros(2)]) == 2
    assert same_bits([torch.empty(0), torch.empty(0)]) is None
    for junk in (None, [], [1, 2], [{"value": 1}, {"value": 1}], {"ranks": 2}):
        assert reports_of(junk, 2)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(("length", "size"), [(12, 4), (13, 4), (3, 4), (1, 2), (7, 3)])
def test_the_ring_of_lists_is_right_whatever_its_parts(cut, length, size):
    shards = [torch.randn(length) for _ in range(size)]
    total = sum(shard.double() for shard in shards)
    assert all(torch.allclose(one, total, rtol=0, atol=1e-12) for one in ring(shards, cut))
    assert cut(length, size)[-1].stop == length and len(cut(length, size)) == size


def test_a_ring_sends_2_n_minus_1_nths_of_the_buffer():
    assert limits(4, 100, 4) == (6, 6 * 25 * 4)
    assert limits(3, 10, 8) == (4, 4 * 4 * 8)


@pytest.mark.parametrize("value", [None, 3, torch.ones(2), torch.ones(46, dtype=torch.bool), [torch.ones(46)], "sum"])
def test_junk_from_a_rank_is_a_sentence(value):
    call = RING.draw(RING.cases[0], 1, "cpu", "interpreter")
    reports = [{"value": value, "traffic": {"sent": {}, "collectives": [], "notes": []}} for _ in range(2)]
    assert isinstance(RING.accept(reports, RING.oracle(call.args)["ranks"], call.args), str)


def test_every_case_of_the_ring_is_tried_on_its_ranks():
    verdict = examine(RING, right_ring(), seed=5, live=True)
    assert verdict.accepted, [f"{case.name}: {case.why}" for case in verdict.cases if not case.right]
    assert {len(RING.draw(case, 5, "cpu", "interpreter").args["shards"]) for case in RING.cases} == {2, 3, 4}


# ------------------------------------------------------------------------------------------- what it costs


def test_the_costs_are_read_from_what_is_given_and_nothing_is_near_a_limit():
    """With half of every limit, on many draws: no right reading fails for noise."""
    cost = get("ddp.cost")
    for seed in range(25):
        for case in cost.cases:
            call = cost.draw(case, seed, "cpu", "interpreter")
            got, want = right(call.args), call.secret["want"]
            assert got["host"] == want["host"], case.name
            for key, limit in LIMITS.items():
                assert abs(got[key] / want[key] - 1) < 0.6 * limit, (case.name, key, seed)


def test_single_calls_are_of_three_kinds_and_each_is_told_by_its_largest_size():
    cost = get("ddp.cost")
    for name, kind in (("added", ADDED), ("hidden", HIDDEN), ("not waited for", "not waited for")):
        call = cost.draw(next(c for c in cost.cases if c.name == name), 3, "cpu", "interpreter")
        single, device = (median(call.args[part][max(call.args[part])]) for part in ("one", "in_a_row"))
        assert call.secret["want"]["host"] == kind
        assert (single < 0.5 * device) == (kind == "not waited for")


def test_plain_least_squares_is_right_where_timings_are_disturbed_whatever_is_drawn():
    cost = get("ddp.cost")
    answer = bank.find("ddp.cost/mistakes/absolute_distances__by_hand").function
    (drawn,) = (c for c in cost.cases if c.name == "disturbed timings")
    for seed in range(71000, 71100):
        call = cost.draw(drawn, seed, "cpu", "interpreter")
        assert cost.accept(answer(**call.args), call.secret["want"], call.args) is None, seed


# ------------------------------------------------------------------------------------------- averaged gradients


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_copies_that_take_the_mean_train_as_one_process_does(case):
    args = case.draw(Draw(11, "cpu", "interpreter")).args
    assert values_off(replicas.trained(args), [replicas.single(args)] * len(args["shards"]), args) is None


def test_rounding_in_fp32_stays_far_below_the_limit_whatever_is_drawn():
    """AdamW divides by a gradient: seeds 138 and 529 drew one of 1e-7, and a right answer was refused."""
    exercise = get("ddp.overlap")
    case = next(case for case in exercise.cases if case.name == "two types of numbers")
    for seed in (138, 529, *range(40)):
        args = exercise.draw(case, seed, "cpu", "interpreter").args
        for mine, true in zip(replicas.trained(args)[0], replicas.single(args), strict=True):
            off = [(mine["weights"][name] - weight).abs().max().item() for name, weight in true["weights"].items()]
            assert max(off) < LIMIT_FP32 / 5, seed


@pytest.mark.parametrize("name", ["ddp.naive", "ddp.flat", "ddp.overlap", "ddp.buckets"])
def test_every_known_wrong_answer_is_wrong_in_some_case(name):
    exercise = get(name)
    drawn = [exercise.draw(case, 3, "cpu", "interpreter").args for case in exercise.cases]
    for mistake in exercise.mistakes:
        if mistake.answer is not None:
            assert any(mistake.answer(args, *mistake.variants[:1]) for args in drawn), mistake.name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rung"),
    [("ddp.naive", Naive), ("ddp.flat", Flat), ("ddp.overlap", Overlap), ("ddp.buckets", Buckets)],
)
def test_the_rungs_of_the_library_are_right_answers(name, rung):
    verdict = examine(get(name), rung, seed=17, live=True)
    assert verdict.accepted, [f"{case.name}: {case.why}" for case in verdict.cases if not case.right]


@pytest.mark.slow
def test_the_librarys_sharded_state_is_a_right_answer():
    def wrap(module, make):
        return Sharded(module, lambda pieces: make(list(pieces.values())), mib=0.001)

    verdict = examine(get("ddp.sharded"), wrap, seed=17, live=True)
    assert verdict.accepted, [f"{case.name}: {case.why}" for case in verdict.cases if not case.right]


def test_state_for_everything_is_refused_and_a_part_of_it_is_measured():
    exercise = get("ddp.sharded")
    call = exercise.draw(exercise.cases[0], 1, "cpu", "interpreter")
    want = exercise.oracle(call.args)["ranks"]
    for held, refused in ((0.5, False), (0.64, False), (0.66, True), (1.0, True), (float("nan"), True)):
        value = {"steps": want["steps"][0], "held": held}
        enough = [["reduce_scatter", floor(call.args), False]]
        reports = [{"value": value, "traffic": {"sent": {}, "collectives": enough, "notes": []}} for _ in range(2)]
        assert bool(exercise.accept(reports, want, call.args)) == refused, held


def test_a_bucket_for_everything_and_one_for_each_parameter_are_refused():
    for mib, says in ((1.0, "bytes in one collective"), (1e-6, "collectives in one step")):

        def wrap(module, mib, size=mib):
            return Buckets(module, size)

        verdict = examine(get("ddp.buckets"), wrap, 17, only="two ranks")
        assert says in verdict.cases[0].why


def test_what_begins_before_the_first_layer_is_told_from_what_begins_behind_it():
    collectives = [["backward", -1, False], ["allreduce", 8, True], [REACHED, -1, False], ["allreduce", 4, True]]
    report = {"traffic": {"collectives": [*collectives, ["finish", -1, False], ["allreduce", 2, True]]}}
    assert [[one.nbytes for one in begun] for begun in segments(report, "backward")] == [[8, 4]]
    assert [[one.nbytes for one in begun] for begun in segments(report, "backward", early=True)] == [[8]]
    assert [[one.nbytes for one in begun] for begun in segments(report, "finish", early=True)] == [[2]]


def test_buckets_are_counted_as_they_are_filled():
    """Plain has, from its end, 8, 40, 440, 88 and 616 bytes; in Mixed the 440 are 220 of another type."""
    assert (needed("Plain", 500), needed("Plain", 1e9), needed("Plain", 1), needed("Mixed", 1e9)) == (3, 1, 5, 2)


def test_what_torch_calls_ddp_is_no_answer_because_finish_is_missing():
    verdict = examine(get("ddp.overlap"), torch.nn.parallel.DistributedDataParallel, seed=17, only="two ranks")
    assert "AttributeError" in verdict.cases[0].why


@pytest.mark.parametrize("value", [None, 3, [], {"steps": 1}, [{"grads": 1}], [{"grads": {}, "weights": {}}] * 2])
def test_junk_from_a_rank_that_trained_is_a_sentence(value):
    exercise = get("ddp.naive")
    call = exercise.draw(exercise.cases[0], 1, "cpu", "interpreter")
    reports = [{"value": value, "traffic": {"sent": {}, "collectives": [], "notes": []}} for _ in range(2)]
    assert isinstance(exercise.accept(reports, exercise.oracle(call.args)["ranks"], call.args), str)


# ------------------------------------------------------------------------------------------- how it can end


def test_a_rank_that_raises_is_told_with_its_line():
    def ring_all_reduce(buffer):
        if dist.get_rank() == 1:
            raise KeyError("left")
        dist.recv(buffer, 1)

    verdict = examine(RING, ring_all_reduce, seed=5, only="three ranks")
    assert "KeyError: 'left' (rank 1 of 3, at raise KeyError" in verdict.cases[0].why


def test_a_check_uses_gloo_on_every_machine(monkeypatch):
    launched = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(
        in_ranks, "launch", lambda f, size, backend, **more: launched.append(in_ranks.chosen(backend, size))
    )
    examine(RING, lambda buffer: None, seed=5)
    assert launched == ["gloo"] * len(RING.cases)


@pytest.mark.parametrize("waits", [".wait()", ".then(lambda done: done.value()).wait()"])
def test_who_waits_for_a_future_in_a_hook_waits_in_the_foreground(waits, tmp_path, monkeypatch):
    source = bank.find("ddp.overlap/mistakes/waits_in_the_hook").source
    changed = source.replace(
        "dist.all_reduce(p.grad)\n", f"dist.all_reduce(p.grad, async_op=True).get_future(){waits}\n"
    )
    assert changed != source
    names = {"__name__": "waiting"}
    exec(changed, names)
    verdict = examine(get("ddp.overlap"), names["Overlap"], seed=17, only="two ranks")
    assert "they run in the foreground" in verdict.cases[0].why


def test_with_nccl_calls_on_equally_many_ranks_share_their_processes(monkeypatch):
    """As on a machine with GPUs, and over gloo all the same."""
    launched = []
    monkeypatch.setattr(in_ranks, "chosen", lambda backend, size: "nccl" if size == 2 else "gloo")
    monkeypatch.setattr(
        in_ranks, "launch", lambda f, *more, **most: launched.append(f.__name__) or launch(f, *more, **most)
    )
    exercise = get("ddp.naive")
    exercise = replace(exercise, cases=tuple(case for case in exercise.cases if case.name in exercise.point))
    (right, *_), (wrong, *_) = (bank.entries(["ddp.naive"], [kind]) for kind in ("right", "mistakes"))
    verdict = examine(exercise, right.function, 11)
    of_two = sum(len(exercise.draw(case, 11, "cpu", "interpreter").args["shards"]) == 2 for case in exercise.cases)
    assert verdict.accepted and launched == ["called_in_turn", *["called"] * (len(exercise.cases) - of_two)]
    assert examine(exercise, wrong.function, 11).diagnosis.mistake == wrong.mistake

    def leaves(module):
        if dist.get_rank() == 1:
            raise KeyError("left")
        dist.barrier()

    launched.clear()
    verdict = examine(exercise, leaves, 11)
    assert "KeyError: 'left' (rank 1 of 2" in verdict.cases[0].why
    assert launched == ["called_in_turn", *["called"] * len(exercise.cases)], "whose fault it is a call alone can tell"


def test_under_many_seeds_the_ranks_of_a_right_answer_stay_as_the_referees_do(monkeypatch):
    launched = []
    monkeypatch.setattr(
        in_ranks, "launch", lambda f, *more, **most: launched.append(f.__name__) or launch(f, *more, **most)
    )
    exercise, (right, *_) = get("ddp.naive"), bank.entries(["ddp.naive"], ["right"])
    drawn = seeds.try_seeds(right, 11, False, 1)
    sizes = {len(exercise.draw(case, 11, "cpu", "interpreter").args["shards"]) for case in exercise.cases}
    assert drawn.points == (drawn.out_of,) and in_ranks.SHARING == {"nccl"}
    assert launched == ["called_in_turn"] * len(sizes) * 2, "in the sizes of grading, and of a check"


def test_a_rank_that_ends_and_one_that_hangs_are_verdicts_and_the_other_cases_wait_for_nothing(monkeypatch):
    monkeypatch.setitem(in_ranks.LIMIT_S, "gloo", 1.5)

    def ends(buffer):
        if dist.get_rank() == 0:
            os._exit(7)
        dist.recv(buffer, 0)

    def hangs(buffer):
        dist.recv(buffer, 1 - dist.get_rank())

    hung = "did not end in 1.5 s, at dist.recv(buffer, 1 - dist.get_rank())"
    for function, says in ((ends, "rank 0 of 2 ended with status 7"), (hangs, hung)):
        started = time.monotonic()
        verdict = examine(RING, function, seed=5, live=True)
        assert time.monotonic() - started < 60
        assert verdict.points == 0 and says in verdict.cases[0].why
        assert verdict.cases[1].why.startswith("not tried") and len(verdict.cases) == len(RING.cases)
        assert "raised" not in verdict.cases[0].why


def test_a_stub_is_not_written_yet():
    def ring_all_reduce(buffer):
        raise NotImplementedError("not written yet")

    verdict = examine(RING, ring_all_reduce, seed=5, live=True)
    assert len(verdict.cases) == len(RING.cases) and "Not written yet" in verdict.diagnosis.says
    assert {case.why for case in verdict.cases[1:]} == {"not tried: not written yet"}


def test_the_check_of_a_notebook_gives_the_points():
    score = check("ddp.ring", right_ring(), seed=9)
    assert repr(score) == "5" and "8 of 8 cases right" in score.explain()
