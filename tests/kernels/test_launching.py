"""A planned function runs as it is written once for each kind of call, and then is its launches, with the same bits."""

import contextlib
import functools
import gc
import inspect
import json
import os
import random as dice
import re
import shutil
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path

import pytest
import torch
import triton
from triton import knobs
from triton.runtime import jit

from benchmarks.launch_costs import as_written
from course_lib.device import DEVICE
from course_lib.kernels import launching
from course_lib.kernels.add_norm import add_norm
from course_lib.kernels.add_norm.backward import write_backward as write_norm_backward
from course_lib.kernels.add_norm.forward import write_forward as write_norm
from course_lib.kernels.attention import attention
from course_lib.kernels.attention.backward import backward
from course_lib.kernels.attention.forward import forward
from course_lib.kernels.attention.packed import packed_attention
from course_lib.kernels.dropout import dropout, dropout_by_element
from course_lib.kernels.launching import launch, planned
from course_lib.kernels.linear_gelu import linear_gelu, linear_gelu_grouped, product_through_gelu, product_with_slope
from course_lib.kernels.mlp import mlp
from course_lib.kernels.rope import Tables, rope, rope_
from course_lib.results import ROOT

STREAM = 77


class _Tensor(torch.Tensor):
    """Says that it is on a GPU; its memory is the host's, and nothing runs."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    on = 0

    @property
    def is_cuda(self):
        return True

    def get_device(self):
        return self.on


def tensor(*shape, dtype=torch.float32, start=0):
    """`start`: elements behind a multiple of 64 bytes."""
    size = torch.Size(shape).numel()
    whole = torch.zeros(size + start + 64, dtype=dtype)
    first = -whole.data_ptr() % 64 // whole.element_size() + start
    return on_a_gpu(whole[first : first + size].view(shape))


def on_a_gpu(x):
    return x.as_subclass(_Tensor)


class _Kernel:
    """What `launch` takes for a kernel, and what Triton would compile; `called` has the C function's arguments."""

    def __init__(self, version: str):
        self.arg_names = ["out", "x", "n", "BLOCK"]
        self.signature = inspect.signature(lambda out, x, n, BLOCK=8: None)
        self.through_triton, self.called = 0, []
        parts = {"launch": self.c_function, "global_scratch_size": 0, "profile_scratch_size": 0}
        parts |= {"launch_cooperative_grid": False, "launch_pdl": False}
        if version == "3.7":
            parts |= {"arg_annotations": ["annotations"], "kernel_signature": b"signature"}
        launcher = type("CudaLauncher", (), {"__module__": "triton.backends.nvidia.driver"})()
        vars(launcher).update(parts)
        metadata = types.SimpleNamespace(tensordesc_meta=None)
        self.compiled = types.SimpleNamespace(run=launcher, metadata=metadata, packed_metadata=(4, 1, 0), function=5)

    def c_function(self, *args):
        self.called.append(args)

    def __getitem__(self, grid):
        def run(*args, **options):
            self.through_triton += 1
            return self.compiled

        return run


@pytest.fixture(params=["3.6", "3.7"])
def kernel(request, monkeypatch):
    monkeypatch.setattr("triton.__version__", request.param + ".1")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: STREAM, raising=False)
    monkeypatch.setattr(launching, "make_context_current", lambda x: None)
    # The interpreter has put its own in place of Triton's `run` for the whole process.
    monkeypatch.setattr(jit.JITFunction, "run", types.FunctionType(_nothing.__code__, vars(jit)))
    return _Kernel(request.param)


def _nothing(*args, **options):
    """In place of Triton's `run`."""


@pytest.fixture
def write(kernel):
    """write(out, x, scale): of x the second row."""

    @planned
    def write(out, x, scale):
        launch(kernel, (3, 2), out, None if x is None else x[1:], len(out), BLOCK=16)

    return write


def arguments(kernel, call: tuple) -> tuple:
    """Of the kernel, from those of the C function."""
    assert call[:5] == (3, 2, 1, STREAM, 5)
    if hasattr(kernel.compiled.run, "kernel_signature"):
        *_, annotations, signature, given = call
        assert (annotations, signature) == (["annotations"], b"signature")
        assert call[5:13] == (False, False, (4, 1, 0), None, None, None, None, None)
        return tuple(given)
    assert call[5:13] == (False, False, None, None, (4, 1, 0), None, None, None)
    return call[13:]


def test_the_next_call_is_the_c_function_alone_with_the_addresses_of_that_call(kernel, write):
    out, x = tensor(4), tensor(2, 4)
    for _ in range(3):
        write(out, x, 0.5)
    other_out, other_x = tensor(4), tensor(2, 4)
    write(other_out, other_x, 0.5)
    assert kernel.through_triton == 1 and len(kernel.called) == 3
    seen = [arguments(kernel, call) for call in kernel.called]
    assert seen[0] == seen[1] == (out.data_ptr(), x.data_ptr() + 16, 4, 16)
    assert seen[2] == (other_out.data_ptr(), other_x.data_ptr() + 16, 4, 16)


@pytest.mark.parametrize(
    "other",
    [
        lambda out, x: (tensor(5), x, 0.5),
        lambda out, x: (out, on_a_gpu(tensor(4, 2).T), 0.5),
        lambda out, x: (out, tensor(2, 4, dtype=torch.int32), 0.5),
        lambda out, x: (out, tensor(2, 4, start=1), 0.5),
        lambda out, x: (out, tensor(2, 4, start=2), 0.5),
        lambda out, x: (out, None, 0.5),
        lambda out, x: (out, x, 0.25),
        lambda out, x: (on_a_gpu(x[0]), x, 0.5),
    ],
    ids=["shape", "strides", "type", "4 bytes", "8 bytes", "none", "number", "one address"],
)
def test_another_kind_of_call_goes_through_triton(kernel, write, other):
    given = tensor(4), tensor(2, 4)
    write(*given, 0.5)
    write(*other(*given))
    assert kernel.through_triton == 2 and not kernel.called
    write(*other(*given))
    write(*given, 0.5)
    assert kernel.through_triton == 2 and len(kernel.called) == 2


@contextlib.contextmanager
def _another_run():
    """As tests and the referee do it, under the name of the original."""
    original = jit.JITFunction.run

    @functools.wraps(original)
    def run(*args, **options):
        return original(*args, **options)

    jit.JITFunction.run = run
    try:
        yield
    finally:
        jit.JITFunction.run = original


@contextlib.contextmanager
def _exit_hook():
    hook = functools.partial(_nothing)
    knobs.runtime.launch_exit_hook.add(hook)
    try:
        yield
    finally:
        knobs.runtime.launch_exit_hook.remove(hook)


@pytest.mark.parametrize("watching", [as_written, _exit_hook, _another_run])
def test_who_watches_launches_sees_every_one(kernel, write, watching):
    given = tensor(4), tensor(2, 4), 0.5
    for _ in range(3):
        write(*given)
    with watching():
        for _ in range(3):
            write(*given)
        assert kernel.through_triton == 4
    write(*given)
    assert kernel.through_triton == 4 and len(kernel.called) == 3


def test_what_cannot_be_written_down_goes_through_triton_every_time(kernel, write, monkeypatch):
    out, x = tensor(4), tensor(2, 4)

    @planned
    def write_to_new_memory(out, x):
        launch(kernel, (3, 2), out, x.clone(), 4)

    @planned
    def write_with_overlap(out, x):
        launch(kernel, (3, 2), out, out[2:], 4)

    far, elsewhere = tensor(4), tensor(2, 4)
    elsewhere.on = 1
    row = tensor(8)
    for call in (
        lambda: write_to_new_memory(out, x),
        lambda: write_with_overlap(on_a_gpu(row[:4]), on_a_gpu(row[1:])),
        lambda: write(far, elsewhere, 0.5),
        lambda: write(out, x=x, scale=0.5),
        lambda: write(torch.zeros(4), x, 0.5),
    ):
        before = kernel.through_triton
        for _ in range(3):
            call()
        assert kernel.through_triton == before + 3
    monkeypatch.setattr("triton.__version__", "3.9.0")
    before = kernel.through_triton
    for _ in range(3):
        write(out, x, 0.5)
    assert kernel.through_triton == before + 3 and not kernel.called


def test_a_planned_function_may_call_another(kernel, write):
    @planned
    def twice(out, x):
        write(out, x, 0.5)
        write(out, x, 0.25)

    given = tensor(4), tensor(2, 4)
    write(*given, 0.5)
    twice(*given)
    assert kernel.through_triton == 3
    twice(*given)
    assert kernel.through_triton == 3 and len(kernel.called) == 2


def test_an_error_on_the_way_leaves_nothing_behind(kernel, write):
    @planned
    def fail(out):
        launch(kernel, (3, 2), out, out, 4)
        raise ValueError("on the way")

    for _ in range(2):
        with pytest.raises(ValueError, match="on the way"):
            fail(tensor(4))
    given = tensor(4), tensor(2, 4), 0.5
    write(*given)
    write(*given)
    assert kernel.through_triton == 3 and len(kernel.called) == 1


def test_the_tables_keep_no_tensor_and_do_not_grow_for_ever(kernel, write, monkeypatch):
    monkeypatch.setattr(launching, "MOST_PLANS", 5)
    monkeypatch.setattr(launching, "MOST_READY", 7)
    out = tensor(4)
    last = weakref.ref(out)
    kept = [tensor(2, 4) for _ in range(20)]  # at different addresses, since all are alive
    for i, x in enumerate(kept):
        write(out, x, float(i % 9))
        write(out, x, float(i % 9))
        assert len(launching._plans) <= 5 and len(launching._ready) <= 7
    assert kernel.called
    del out
    gc.collect()
    assert last() is None


# Batch, heads, heads of keys, queries, keys, head size, type, causal, padded, (B, N, H, D) in memory, start. Few, since
# each makes the compiler build three kernels or more.
ATTENTION = (
    (2, 4, 4, 256, 256, 64, torch.bfloat16, False, False, False, 0),
    (2, 4, 2, 65, 63, 72, torch.bfloat16, True, True, True, 0),
    (1, 2, 2, 33, 40, 17, torch.float32, False, True, False, 3),
)


def _drawn(*shape, dtype, start=0):
    """Random values in memory that begins `start` elements behind a multiple of 16 bytes."""
    size = torch.Size(shape).numel()
    return torch.randn(size + start, device=DEVICE).to(dtype)[start:].view(shape)


def _attention_call(B, H, H_kv, n_q, n_k, D, dtype, causal, padded, turned, start):
    def one(heads, n):
        if turned:
            return _drawn(B, n, heads, D, dtype=dtype, start=start).transpose(1, 2)
        return _drawn(B, heads, n, D, dtype=dtype, start=start)

    q, k, v, do = one(H, n_q), one(H_kv, n_k), one(H_kv, n_k), one(H, n_q)
    lengths = torch.randint(0, n_k + 1, (B,), device=DEVICE, dtype=torch.int32) if padded else None

    def call():
        o, l = forward(q, k, v, causal, 0.2, lengths)
        return o, l, *backward(do, q, k, v, o, l, causal, 0.2, lengths)

    return call


def _packed_call():
    qkv = _drawn(8, 128, 3, 4, 72, dtype=torch.bfloat16).requires_grad_()
    lengths = torch.randint(1, 129, (8,), device=DEVICE, dtype=torch.int32)
    return functools.partial(
        _with_gradients, packed_attention, [qkv], _drawn(8, 128, 4, 72, dtype=torch.bfloat16), lengths
    )


def _norm_calls():
    seed = torch.tensor([7], device=DEVICE)
    for rows, width, dtype, start, p in ((512, 1152, torch.bfloat16, 0, 0.0), (3, 100, torch.float32, 1, 0.25)):
        matrices = [_drawn(rows, width, dtype=dtype, start=start).requires_grad_() for _ in range(2)]
        vectors = [_drawn(width, dtype=dtype).requires_grad_() for _ in range(2)]
        norm = functools.partial(_sum_of_norm, p=p, seed=seed)
        yield functools.partial(_with_gradients, norm, [*matrices, *vectors], _drawn(rows, width, dtype=dtype))
        yield functools.partial(_norm_in_place, matrices, vectors)


def _mlp_leaves(rows, d, n, start):
    shapes = (rows, d), (n, d), (n,), (d, n), (d,)
    x, *weights = (_drawn(*shape, dtype=torch.bfloat16, start=start) for shape in shapes)
    return [x.requires_grad_(), *((one / n**0.5).requires_grad_() for one in weights)]


def _mlp_calls():
    for rows, d, n, start in ((512, 1152, 4304, 0), (33, 20, 30, 1)):
        leaves, dy = _mlp_leaves(rows, d, n, start), _drawn(rows, d, dtype=torch.bfloat16)
        yield functools.partial(_with_gradients, mlp, leaves, dy, "pre-activation")
        x, w1, _, w2, _ = (one.detach() for one in leaves)
        yield functools.partial(_products, x, w1, w2)


def _pointwise_calls():
    q, k = (_drawn(2, 33, heads, 64, dtype=torch.bfloat16).transpose(1, 2) for heads in (4, 2))
    angle = torch.arange(40.0, device=DEVICE)[:, None] / torch.arange(1.0, 33.0, device=DEVICE)
    tables, seed = Tables(angle.cos(), angle.sin()), torch.tensor([7], device=DEVICE)
    positions = torch.randint(0, 40, (2, 33), device=DEVICE)
    yield lambda: rope(q, k, tables, positions=positions)
    yield lambda: rope_(q.clone(), k.clone(), tables, "interleaved")
    yield lambda: (dropout(q, 0.25, seed=seed), dropout_by_element(k.contiguous(), 0.25, seed))


def _all_calls():
    """Results of each are compared bit by bit."""
    calls = [_attention_call(*given) for given in ATTENTION]
    return [*calls, _packed_call(), *_norm_calls(), *_mlp_calls(), *_pointwise_calls()]


def _with_gradients(function, leaves, dy, *others):
    y = function(*leaves, *others)
    return y.detach(), *torch.autograd.grad(y, leaves, dy)


def _sum_of_norm(x, residual, weight, bias, p, seed):
    return torch.add(*add_norm(x, residual, weight, bias, p=p, seed=seed))


def _norm_in_place(matrices, vectors):
    """y over x and s over the residual, then backward with d over ds."""
    (x, residual), (weight, bias) = ([one.detach().clone() for one in group] for group in (matrices, vectors))
    terms = torch.empty(2, len(x), device=DEVICE)
    write_norm(x, residual, terms[0], terms[1], x, residual, weight, bias, 1e-5)
    ds, dw = x.clone(), torch.empty_like(weight)
    write_norm_backward(ds, None, dw, None, x, ds, residual, weight, terms[0], terms[1])
    return x, residual, terms, ds, dw


def _products(x, w1, w2):
    h = torch.empty(len(x), len(w1), device=DEVICE, dtype=x.dtype)
    a = linear_gelu(x, w1, None, h=h)
    b = linear_gelu_grouped(x, w1)
    kept = h.clone()
    dh, sums = product_with_slope(x, w2, h, sums=True)
    again, through = product_through_gelu(x, w2, kept, kept, torch.empty_like(a))
    return a, b, h, dh, sums, again, through


def _same(got, want) -> bool:
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in zip(got, want)
    )


@pytest.fixture
def nothing_is_written_down(monkeypatch):
    """From the call of this on every planned function has to be its launches alone."""
    return lambda: monkeypatch.setattr(launching, "_written_down", lambda *_: pytest.fail("through Triton"))


@pytest.mark.gpu
def test_the_same_bits_as_through_triton_in_any_order(nothing_is_written_down):
    torch.manual_seed(0)
    calls = _all_calls()
    with as_written():
        want = [call() for call in calls]
    assert not launching._plans
    for call in calls:
        call()
    assert launching._plans and None not in launching._plans.values(), "a launch that only Triton can make"
    nothing_is_written_down()
    order = [i for i in range(len(calls)) for _ in range(3)]
    dice.Random(0).shuffle(order)
    for i in order:
        # Memory that does not come back at once, so that addresses change.
        _hold = torch.full((dice.randrange(1, 10**6),), float("nan"), device=DEVICE)
        assert _same(calls[i](), want[i]), i
    assert launching._ready


@pytest.mark.gpu
def test_in_a_graph_and_on_another_stream(nothing_is_written_down):
    q, k, v, do = (_drawn(2, 4, 256, 64, dtype=torch.bfloat16) for _ in range(4))
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def call():
        return _with_gradients(attention, leaves, do)

    with as_written():
        want = call()
    call()
    nothing_is_written_down()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**8)  # what is launched on any other stream is done long before
        q.data.mul_(2)
        there = call()
        q.data.div_(2)
    torch.cuda.synchronize()
    doubled = [x.detach().clone() for x in leaves]
    doubled[0] *= 2
    with as_written():
        assert _same(there, _with_gradients(attention, [x.requires_grad_() for x in doubled], do))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = call()
    for x in held:
        x.fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert _same(held, want)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # leaves are of another stream here
def test_two_threads_at_once():
    calls = _all_calls()[::2]
    with as_written():
        want = [call() for call in calls]
    torch.cuda.synchronize()
    wrong = []

    def work(seed):
        order = list(range(len(calls))) * 3
        dice.Random(seed).shuffle(order)
        with torch.cuda.stream(torch.cuda.Stream()):
            for i in order:
                got = calls[i]()
                torch.cuda.current_stream().synchronize()
                if not _same(got, want[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "two threads wait for each other"
    assert not wrong


@pytest.mark.gpu
def test_no_memory_is_held():
    def use():
        leaves, dy = _mlp_leaves(512, 1152, 4304, 0), _drawn(512, 1152, dtype=torch.bfloat16)
        for _ in range(4):
            _with_gradients(mlp, leaves, dy, "pre-activation")

    with as_written():
        use()  # the libraries' own memory
    before = torch.cuda.memory_allocated()
    use()
    assert launching._ready and torch.cuda.memory_allocated() == before


IN_A_NEW_PROCESS = """
import course_lib.device
import torch
from benchmarks.launch_costs import as_written
from course_lib.kernels import launching
from course_lib.kernels.attention import attention

device = torch.device("cuda", torch.cuda.device_count() - 1)
torch.cuda.set_device(device)
leaves = [torch.randn(2, 4, 256, 64, device=device, dtype=torch.bfloat16).requires_grad_() for _ in range(3)]
do = torch.randn(2, 4, 256, 64, device=device, dtype=torch.bfloat16)
def step():
    o = attention(*leaves)
    return o, *torch.autograd.grad(o, leaves, do)  # in autograd's thread
with as_written():
    want = step()
for _ in range(5):
    assert all(map(torch.equal, step(), want))
assert launching._ready and None not in launching._plans.values()
"""


@pytest.mark.gpu
def test_backward_in_autograds_thread_of_a_new_process_on_the_last_device():
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NEW_PROCESS], cwd=ROOT, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.gpu
def test_devices_have_plans_of_their_own():
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    results = []
    for index in (0, 1, 0, 1):
        with torch.cuda.device(index):
            torch.manual_seed(0)
            q, k, v = (torch.randn(1, 2, 128, 64, dtype=torch.bfloat16).cuda() for _ in range(3))
            results.append(forward(q, k, v, True, 0.2)[0].cpu())
    assert all(torch.equal(one, results[0]) for one in results[1:]) and len(launching._plans) == 2


@pytest.mark.slow
def test_the_driver_gets_the_same_bytes_from_this_triton(tmp_path):
    """Without a GPU: real kernels, compiled, and a driver that writes down what it is given."""
    compiler = shutil.which("cc")
    if compiler is None or DEVICE == "cuda":
        pytest.skip("no C compiler, or a driver of its own")
    source, headers = ROOT / "tests/kernels/paper_driver.c", Path(triton.__file__).parent / "backends/nvidia/include"
    command = [compiler, "-shared", "-fPIC", "-O1", "-I", headers, source, "-o", tmp_path / "libcuda.so.1"]
    subprocess.run(command, check=True, timeout=60)
    (tmp_path / "libcuda.so").symlink_to("libcuda.so.1")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["LD_LIBRARY_PATH"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.on_paper", tmp_path]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["compared"] > 40 and not found["differ"] and not found["only Triton"], found


ROOMS = ("attention", "add_norm", "linear_gelu")  # beside files that plan by themselves


def test_what_planned_functions_call_launches_nothing_by_itself():
    """A plan holds what went through `launch`: another launch would happen in the first call and never again."""
    folder = Path(launching.__file__).parent
    planning = [path for path in folder.glob("*.py") if re.search("^@planned", path.read_text(), re.MULTILINE)]
    called = folder.glob("product_*.py")
    every = [*planning, *called, *(path for room in ROOMS for path in (folder / room).glob("*.py"))]
    direct = [f"{path.name}: {line}" for path in every for line in re.findall(r"\w*kernel\[\(.*", path.read_text())]
    assert len(every) > 25 and not direct
