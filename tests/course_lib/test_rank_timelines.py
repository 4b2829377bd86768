"""What collectives cost on paper, and who computes, sends and waits on each rank."""

import time

import pytest
import torch
import torch.distributed as dist

from course_lib import plots
from course_lib.distributed import (
    Recorder,
    Span,
    bus_bandwidth,
    exposed_s,
    fit,
    launch,
    place,
    sent_share,
    together,
)
from course_lib.distributed.timeline import COMMUNICATION

# ------------------------------------------------------------------------------------------- on paper


def test_an_all_reduce_sends_what_its_two_halves_send():
    for ranks in (2, 3, 8):
        assert sent_share("all_reduce", ranks) == sent_share("reduce_scatter", ranks) + sent_share("all_gather", ranks)
    assert sent_share("all_reduce", 4) == 1.5
    assert bus_bandwidth("all_reduce", 10**9, 4, 0.5) == 3e9


def test_a_line_is_found_again_over_six_powers_of_ten():
    sizes = [2**power for power in range(10, 31, 2)]
    noise = [1.02, 0.98]
    line = fit({n: (20e-6 + n / 300e9) * noise[i % 2] for i, n in enumerate(sizes)})
    assert line.alpha_s == pytest.approx(20e-6, rel=0.02)
    assert line.bytes_per_s == pytest.approx(300e9, rel=0.02)
    assert line.crossover_bytes == pytest.approx(6e6, rel=0.04)
    assert 0.01 < line.worst < 0.04
    assert line.seconds(line.crossover_bytes) == pytest.approx(2 * line.alpha_s)


def test_a_line_has_no_part_below_zero_and_says_how_far_it_is_off():
    falling = fit({1000: 3e-5, 2000: 2e-5})
    assert (falling.beta_s, falling.crossover_bytes) == (0.0, float("inf")) and falling.worst > 0.1
    steep = fit({1000: 1e-6, 2000: 4e-6})
    assert steep.alpha_s == 0.0 and steep.beta_s > 0
    with pytest.raises(ValueError, match="two sizes"):
        fit({1000: 1e-6})


# ------------------------------------------------------------------------------------------- spans


def span(rank, kind, start, end, number=-1):
    return Span(rank, kind, kind, start, end, number)


def test_a_collective_is_waiting_until_the_last_rank_has_come():
    found = together([[span(0, "communication", 10.0, 16.0, 0)], [span(1, "communication", 15.0, 16.0, 0)]])
    assert [(s.rank, s.kind, s.start_s, s.end_s) for s in found] == [
        (0, "waiting", 0.0, 5.0),
        (0, "communication", 5.0, 6.0),
        (1, "communication", 5.0, 6.0),
    ]


def test_a_collective_that_was_started_behind_another_begins_when_that_one_ends():
    first, second = span(0, "communication", 0.0, 4.0, 0), span(0, "communication", 1.0, 6.0, 1)
    other = [span(1, "communication", 0.0, 4.0, 0), span(1, "communication", 5.0, 6.0, 1)]
    found = together([[first, second], other])
    assert [(s.kind, s.start_s, s.end_s) for s in found if s.rank == 0] == [
        ("communication", 0.0, 4.0),
        ("waiting", 4.0, 5.0),
        ("communication", 5.0, 6.0),
    ]


def test_what_computing_covers_is_not_exposed():
    spans = [span(0, "compute", 0.0, 4.0), span(0, "communication", 3.0, 6.0), span(0, "waiting", 6.0, 7.0)]
    spans += [span(0, "compute", 8.0, 9.0), span(1, "communication", 0.0, 9.0)]
    assert exposed_s(spans, 0) == pytest.approx(3.0)
    assert exposed_s(spans, 1) == pytest.approx(9.0)


def recorded(rank):
    """Rank 1 computes 0.1 s longer before a collective; then one that runs while both compute."""
    big = torch.ones(1 << 22, device=place())
    dist.all_reduce(big)
    with Recorder() as seen:
        with seen.span("work"):
            time.sleep(0.02 + 0.1 * rank)
        dist.all_reduce(torch.ones(4, device=place()))
        work = dist.all_reduce(big, async_op=True)
        with seen.span("more"):
            time.sleep(0.05)
        work.wait()
        with seen.span("by hand", COMMUNICATION):
            dist.send(torch.ones(4), 1) if rank == 0 else dist.recv(torch.ones(4), 0)
    before = dist.all_reduce
    dist.all_reduce(torch.ones(4))
    return seen.spans, before.__module__


def test_recorded_spans_show_who_waited_for_whom():
    told = launch(recorded, 2, "gloo")
    assert all(module.startswith("torch") for _, module in told), "outside, nothing is replaced"
    spans = together([spans for spans, _ in told])
    waited = {rank: sum(s.seconds for s in spans if s.rank == rank and s.kind == "waiting") for rank in (0, 1)}
    assert 0.09 < waited[0] and waited[1] < waited[0] / 2
    assert min(s.start_s for s in spans) == 0
    labels = [s.label for s in spans if s.rank == 1 and s.kind != "waiting"]
    assert labels == ["work", "all_reduce", "all_reduce", "more", "by hand", "recv"]
    behind = next(s for s in spans if s.rank == 1 and s.label == "more")
    second = [s for s in spans if s.rank == 1 and s.label == "all_reduce" and s.number == 1]  # and a wait before it
    assert min(s.start_s for s in second) <= behind.start_s < max(s.end_s for s in second), "behind computing"


def test_the_figure_says_what_is_not_hidden_and_has_two_lanes_a_rank():
    spans = [span(0, "compute", 0.0, 4.0), span(0, "communication", 4.0, 5.0, 0)]
    spans += [span(1, "compute", 0.0, 2.0), span(1, "waiting", 2.0, 4.0, 0), span(1, "communication", 4.0, 5.0, 0)]
    ax = plots.ranks(spans, device="a machine")
    assert ax.get_title(loc="left").replace("\n", " ").startswith("60 % of the time rank 1 sends or waits")
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels == ["rank 0\n1 s without computing", "rank 1\n3 s without computing"]
    words = [text.get_text() for text in ax.get_legend().get_texts()]
    assert words == ["compute", "sending", "waiting for a rank"]
    assert len(ax.patches) == len(spans)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_on_gpus_spans_are_times_of_the_device():
    def step(rank):
        x, big = torch.randn(8192, 8192, device=place()), torch.ones(1 << 28, device=place())
        x @ x, dist.all_reduce(big)
        with Recorder() as seen:
            with seen.span("work"):
                for _ in range(4 + 16 * rank):
                    x @ x
            work = dist.all_reduce(big, async_op=True)
            work.wait()
        return seen.spans

    spans = together(launch(step, 2, "nccl"))
    sizes = {(s.rank, s.kind): s.seconds for s in spans}
    assert sizes[1, "compute"] > 3 * sizes[0, "compute"] > 1e-3
    assert sizes[0, "waiting"] > 0.5 * (sizes[1, "compute"] - sizes[0, "compute"])
    assert 1e-3 < sizes[1, "communication"] < 0.1
