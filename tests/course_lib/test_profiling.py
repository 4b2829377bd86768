import gzip
import json
import subprocess
import sys
import time

import pytest
import torch

from course_lib import profiling
from course_lib.device import DEVICE
from course_lib.profiling import span, trace
from course_lib.profiling.trace import Gap, Interval, Row

# Two streams: a and b overlap, then nothing for 3 s, then c.
THREE = [Interval(1.0, 3.0, "a", 7), Interval(2.0, 4.0, "b", 13), Interval(7.0, 8.0, "c", 7)]


def test_overlapping_streams_are_busy_only_once():
    assert trace.merged(THREE) == [(1.0, 4.0), (7.0, 8.0)]
    assert trace.busy_s(THREE) == 4.0 and trace.busy_s(THREE, 3.5, 7.5) == 1.0 and trace.busy_s([]) == 0


def test_touching_and_contained_intervals_are_one():
    assert trace.merged([(0.0, 1.0), (1.0, 2.0), (0.2, 0.4)]) == [(0.0, 2.0)]


def test_a_gap_knows_what_came_before_and_after():
    assert trace.gaps(THREE) == [Gap(4.0, 7.0, "b", "c")]
    assert trace.gaps(THREE, 0.0, 10.0) == [
        Gap(0.0, 1.0, None, "a"),
        Gap(4.0, 7.0, "b", "c"),
        Gap(8.0, 10.0, "c", None),
    ]
    assert trace.gaps(THREE, least_s=3.0) == [] and trace.gaps([], 0.0, 1.0) == [Gap(0.0, 1.0, None, None)]


def test_busy_time_and_gaps_add_up_to_the_window():
    gaps = trace.gaps(THREE, 0.5, 7.5)
    assert sum(g.end_s - g.start_s for g in gaps) + trace.busy_s(THREE, 0.5, 7.5) == pytest.approx(7.0)


def test_a_short_kernel_inside_a_long_one_does_not_end_the_busy_time():
    assert trace.gaps([(0.0, 10.0, "long", 7), (1.0, 2.0, "short", 13), (11.0, 12.0, "next", 7)]) == [
        Gap(10.0, 11.0, "long", "next")
    ]


def test_totals_are_sorted_by_time_and_shares_sum_to_one():
    rows = trace.totals([*THREE, Interval(9.0, 12.0, "c", 7)])
    assert rows[0] == Row("c", 2, 4.0, 0.5) and sum(r.share for r in rows) == pytest.approx(1.0)


def test_each_second_of_nested_calls_belongs_to_the_innermost():
    nested = [(0.0, 10.0, "outer", 1), (1.0, 4.0, "middle", 1), (2.0, 3.0, "inner", 1), (5.0, 6.0, "middle", 1)]
    rows = {r.name: (r.calls, r.total_s) for r in trace.self_times([*nested, (0.0, 2.0, "outer", 2)])}
    assert rows == {"outer": (2, 8.0), "middle": (2, 3.0), "inner": (1, 1.0)}


def _gpu_trace():
    """A host that launches two kernels in 'forward' and one, from another thread, in 'backward'; times in us."""

    def event(cat, name, ts, dur, tid=1, **args):
        return {"ph": "X", "cat": cat, "name": name, "ts": 5e9 + ts, "dur": dur, "tid": tid, "args": args}

    return {
        "traceEvents": [
            {"ph": "M", "name": "process_name", "args": {}},
            event("user_annotation", "forward", 0, 50),
            event("user_annotation", "backward", 60, 40),
            event("gpu_user_annotation", "forward", 30, 120, tid=7),
            event("cuda_runtime", "cudaLaunchKernel", 10, 5, correlation=1),
            event("cuda_driver", "cuLaunchKernelEx", 20, 5, correlation=2),
            event("cuda_runtime", "cudaLaunchKernel", 70, 5, tid=2, correlation=3),
            event("kernel", "gemm", 30, 40, tid=7, stream=7, correlation=1),
            event("kernel", "_softmax_kernel", 70, 30, tid=7, stream=7, correlation=2),
            event("gpu_memset", "Memset (Device)", 120, 10, tid=7, stream=7, correlation=3),
            event("cpu_op", "aten::mm", 5, 12),
        ]
    }


def test_a_recorded_gpu_trace_gives_kernels_ranges_and_gaps(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(_gpu_trace()))
    got = profiling.summarize(trace.read_trace(path))
    approx = pytest.approx
    assert got.on == "GPU" and [r.name for r in got.kernels] == ["gemm", "_softmax_kernel", "Memset (Device)"]
    assert got.wall_s == approx(100e-6) and got.busy_s == approx(80e-6) and got.busy_share == approx(0.8)
    assert [(g.before, g.after) for g in got.gaps] == [("_softmax_kernel", "Memset (Device)")]
    ranges = {r.name: (r.calls, r.host_s, r.device_s) for r in got.ranges}
    assert ranges["forward"] == (1, approx(50e-6), approx(70e-6))
    assert ranges["backward"] == (1, approx(40e-6), approx(10e-6))
    assert got.trace.device[0] == (approx(30e-6), approx(70e-6), "gemm", 7, approx(10e-6))
    assert "GPU was busy 80%" in str(got) and "GPU time" in got._repr_html_()


def test_a_gzipped_trace_reads_the_same(tmp_path):
    plain, zipped = tmp_path / "t.json", tmp_path / "t.json.gz"
    plain.write_text(json.dumps(_gpu_trace()))
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert trace.read_trace(plain) == trace.read_trace(zipped)


def test_work_launched_before_a_window_is_not_in_it(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(_gpu_trace()))
    inside = trace.read_trace(path).within(15e-6, 75e-6)
    assert [i.name for i in inside.device] == ["_softmax_kernel", "Memset (Device)"]


def test_an_empty_trace_is_no_error(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    got = profiling.summarize(trace.read_trace(path))
    assert got.wall_s == 0 and got.busy_share == 0 and got.gaps == () and "0 us in all" in str(got)


def test_a_live_profile_finds_operators_spans_and_pauses():
    w, x = torch.randn(64, 64, requires_grad=True, device=DEVICE), torch.randn(32, 64, device=DEVICE)

    def step():
        with span("forward"):
            loss = (x @ w).cos().sum()
        time.sleep(0.01)
        with span("backward"):
            loss.backward()

    got = profiling.profile(step)
    assert [(r.name, r.calls) for r in got.ranges] == [("forward", 1), ("backward", 1)]
    assert all(0 < r.device_s for r in got.ranges)
    assert got.wall_s > 0.01 and got.busy_share < 0.9
    assert max(g.end_s - g.start_s for g in got.gaps) > 0.009
    assert got.busy_s + sum(g.end_s - g.start_s for g in got.gaps) == pytest.approx(got.wall_s, rel=0.05)


def test_calls_before_the_counted_one_are_left_out():
    x = torch.randn(1000, device=DEVICE)
    got = profiling.profile(lambda: x.cos(), warmup=3)
    assert sum(r.calls for r in got.kernels if "cos" in r.name) == 1


def test_the_raw_trace_can_be_kept(tmp_path):
    profiling.record(lambda: torch.ones(3, device=DEVICE), path=tmp_path / "kept.json")
    assert "traceEvents" in json.loads((tmp_path / "kept.json").read_text())


def test_names_are_escaped_in_the_html_table():
    with_markup = trace.Trace((Interval(0.0, 1.0, "f<int>", 7, 0.0),), (), (), ())
    assert "f&lt;int&gt;" in profiling.summarize(with_markup)._repr_html_()


@pytest.mark.slow
def test_profiling_writes_nothing_to_stderr():
    code = "import torch; from course_lib import profiling; profiling.profile(lambda: torch.ones(9).cos())"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.gpu
def test_the_kernels_of_a_gpu_fill_the_time_when_nothing_waits():
    x = torch.randn(2**26, device="cuda")
    got = profiling.profile(lambda: [x.mul_(1.0) for _ in range(20)])
    assert got.on == "GPU" and sum(r.calls for r in got.kernels) == 20
    assert got.busy_share > 0.8 and got.kernels[0].total_s == pytest.approx(got.busy_s, rel=0.01)


@pytest.mark.gpu
def test_a_triton_kernel_belongs_to_the_span_that_launched_it():
    from course_lib.kernels.pointwise import axpy

    x, y = torch.randn(2, 2**20, device="cuda")
    out = torch.empty_like(x)

    def step():
        with span("axpy"):
            axpy(2.0, x, y, out)
        with span("nothing"):
            pass

    ranges = {r.name: r.device_s for r in profiling.profile(step).ranges}
    assert ranges["axpy"] > 0 and ranges["nothing"] == 0
