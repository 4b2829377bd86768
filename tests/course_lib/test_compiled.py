"""What the compiler says about a kernel, on a machine that need not have a GPU."""

import json
import linecache

import pytest
import torch

from course_lib import compiled
from course_lib.cards import ARCHITECTURES, architecture
from course_lib.compiled import CompileError, compile_kernel, why_not, why_not_each
from course_lib.compiled.source import describe
from course_lib.device import cache_folder

# isort: split
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin


@triton.jit
def copied(out_ptr, x_ptr, stride_row, stride_col, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, col = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tl.store(out_ptr + row * COLUMNS + col, tl.load(x_ptr + row * stride_row + col * stride_col))


@triton.jit
def copied_with_a_tuple(out_ptr, x_ptr, stride, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, col = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    tl.store(out_ptr + row * COLUMNS + col, tl.load(x_ptr + row * stride[0] + col * stride[1]))


SCALE = tl.constexpr(2.5)
NOT_CONSTEXPR = 3


@triton.jit
def matmul(c_ptr, a_ptr, b_ptr, K, stride_a, stride_b, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    m, n, k = tl.arange(0, M)[:, None], tl.arange(0, N)[None, :], tl.arange(0, BLOCK_K)
    acc = tl.zeros((M, N), tl.float32)
    for start in tl.range(0, K, BLOCK_K):
        a = tl.load(a_ptr + m * stride_a + (start + k)[None, :])
        b = tl.load(b_ptr + (start + k)[:, None] * stride_b + n)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m * N + n, acc.to(c_ptr.dtype.element_ty))


@triton.jit
def matmul_descriptors(c, a, b, K, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    acc = tl.zeros((M, N), tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        acc = tl.dot(a.load([0, k]), b.load([k, 0]), acc)
    c.store([0, 0], acc.to(tl.bfloat16))


@triton.jit
def _scaled(x, KIND: tl.constexpr):
    return (x * SCALE).to(KIND)


@triton.jit
def with_parts(out_ptr, x_ptr, n, KIND: tl.constexpr, BLOCK: tl.constexpr = 256):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(out_ptr + offs, _scaled(x, KIND), mask=offs < n)


@triton.jit
def _no_power_of_two(x):
    return x + tl.arange(0, 3)


@triton.jit
def broken(x_ptr):
    x = tl.load(x_ptr + tl.arange(0, 16))
    tl.store(x_ptr + tl.arange(0, 16), _no_power_of_two(x))


@triton.jit
def names_a_plain_global(x_ptr):
    tl.store(x_ptr, NOT_CONSTEXPR)


POINTERS = {
    "c_ptr": "*bf16",
    "a_ptr": "*bf16",
    "b_ptr": "*bf16",
    "K": "i32",
    "stride_a": "i32",
    "stride_b": "i32",
}


@pytest.mark.parametrize(("arch", "own", "other"), [(80, "mma", "wgmma"), (90, "wgmma", "mma")])
def test_a_matmul_uses_the_tensor_cores_of_its_architecture(arch, own, other):
    made = compile_kernel(matmul, POINTERS, {"M": 128, "N": 128, "BLOCK_K": 32}, arch=arch)
    assert made.instructions[own] > 0 and made.instructions[other] == 0
    assert made.instructions["cp.async"] > 0 and made.instructions["tma"] == 0
    assert made.fits and made.shared_bytes > 0 and made.warnings == ()
    assert made.shared_limit_bytes == ARCHITECTURES[arch].shared_limit_bytes == {80: 166912, 90: 232448}[arch]
    assert 64 <= made.registers <= 255 and made.spills_bytes == 0
    assert ("HGMMA" in made.sass) == (arch == 90) and f"sm_{arch}" in made.ptx
    assert "registers a thread" in str(made) and ">registers a thread</th>" in made._repr_html_()


def test_tensor_descriptors_become_tma_on_hopper():
    blocks = {"c": "tensordesc<bf16[128, 128]>", "a": "tensordesc<bf16[128, 64]>", "b": "tensordesc<bf16[64, 128]>"}
    made = compile_kernel(matmul_descriptors, {**blocks, "K": "i32"}, {"M": 128, "N": 128, "BLOCK_K": 64}, num_warps=8)
    assert made.instructions["tma"] > 0 and made.instructions["wgmma"] > 0
    assert made.instructions["cp.async"] == 0


def test_a_tile_that_is_too_large_spills_and_does_not_fit():
    made = compile_kernel(matmul, POINTERS, {"M": 128, "N": 256, "BLOCK_K": 32}, arch=80, num_warps=4, num_stages=8)
    assert not made.fits and made.shared_bytes > made.shared_limit_bytes
    assert made.spills_bytes > 0 and made.registers == 255
    assert any("spill" in text for text in made.warnings) and any("166912" in text for text in made.warnings)
    assert "does not fit" in str(made)


def test_helpers_constants_defaults_and_dtypes_travel_along():
    made = compile_kernel(with_parts, {"out_ptr": "*fp16", "x_ptr": "*fp32", "n": "i32"}, {"KIND": tl.float16})
    assert "cvt.rn.f16" in made.ptx and "0f40200000" in made.ptx  # 2.5
    assert made.instructions["mma"] == 0 and made.warnings == ()


@builtin
def clock_of_the_multiprocessor(_semantic=None):
    return gl.inline_asm_elementwise(
        "mov.u32 $0, %clock;", "=r", [], dtype=gl.int32, is_pure=False, pack=1, _semantic=_semantic
    )


@gluon.jit
def told_the_time(out_ptr):
    gl.store(out_ptr, clock_of_the_multiprocessor())


def test_a_builtin_that_is_not_tritons_travels_along():
    assert "%clock;" in compile_kernel(told_the_time, {"out_ptr": "*i32"}, {}).ptx


def test_vector_width_follows_from_what_is_known_of_the_sizes():
    types = {"out_ptr": "*fp16", "x_ptr": "*fp32", "n": "i32"}
    aligned = compile_kernel(with_parts, types, {"KIND": tl.float16, "BLOCK": 1024})
    unknown = compile_kernel(with_parts, types, {"KIND": tl.float16, "BLOCK": 1024}, divisible_by_16=False)
    assert aligned.instructions["ld.global.v4"] > 0 and unknown.instructions["ld.global.v4"] == 0


@pytest.mark.parametrize("aligned", [True, False])
def test_a_tuple_is_compiled_as_so_many_arguments_and_a_number_in_it_as_a_constant(aligned):
    pointers, sizes = {"out_ptr": "*fp16", "x_ptr": "*fp16"}, {"ROWS": 16, "COLUMNS": 64}
    for column in ("i32", 1):
        fixed, types = ({}, {"stride_col": column}) if column == "i32" else ({"stride_col": 1}, {})
        apart = compile_kernel(copied, pointers | {"stride_row": "i32"} | types, sizes | fixed, divisible_by_16=aligned)
        types = pointers | {"stride": ("i32", column)}
        together = compile_kernel(copied_with_a_tuple, types, sizes, divisible_by_16=aligned)
        assert together.registers == apart.registers and together.instructions == apart.instructions
        wide = together.instructions["ld.global.v4"] > 0
        assert wide == (aligned and column == 1), "what is known of an element of a tuple is used"


def test_a_kernel_from_a_notebook_cell_compiles():
    cell = "@triton.jit\ndef kernel(x_ptr):\n    tl.store(x_ptr + tl.arange(0, 16), tl.full((16,), 1.0, tl.float32))\n"
    name = "<ipython-input-7>"
    linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
    space = {"triton": triton, "tl": tl, "__name__": "__main__"}
    exec(compile(cell, name, "exec"), space)
    assert compile_kernel(space["kernel"], {"x_ptr": "*fp32"}).instructions["st.global"] > 0


def test_a_local_variable_may_share_its_name_with_a_torch_dtype_of_the_notebook(monkeypatch):
    monkeypatch.setitem(globals(), "x", torch.float16)  # `with_parts` has a local x
    told = describe(with_parts, {"out_ptr": "*fp32", "x_ptr": "*fp32", "n": "i32"}, {"KIND": tl.float32})
    assert all("x" not in function["names"] for function in told["functions"].values())


def test_a_source_file_is_compiled_without_running_it(tmp_path):
    text = (
        "import triton\nimport triton.language as tl\nfrom course_lib.device import DEVICE\n"
        "SIZE = tl.constexpr(16)\nraise SystemExit('ran')\n"
        "@triton.autotune(configs=[], key=[])\n@triton.jit\ndef kernel(x_ptr):\n"
        "    tl.store(x_ptr + tl.arange(0, SIZE), tl.zeros((SIZE,), tl.float32))\n"
    )
    assert compile_kernel((text, "kernel"), {"x_ptr": "*fp32"}).instructions["st.global"] > 0
    wrong = text.replace("tl.zeros", "tl.zeroes")
    with pytest.raises(CompileError, match="zeroes") as caught:
        compile_kernel((wrong, "kernel"), {"x_ptr": "*fp32"})
    assert caught.value.line == 9 and caught.value.file == "source"
    path = tmp_path / "work.py"
    path.write_text(text)
    assert describe((path, "kernel"), {}, {})["module"] == {"text": text, "file": str(path)}


def test_a_compile_error_shows_the_students_line():
    with pytest.raises(CompileError, match="arange's range must be a power of 2") as caught:
        compile_kernel(broken, {"x_ptr": "*fp32"})
    assert caught.value.source == "return x + tl.arange(0, 3)" and caught.value.file == __file__
    assert linecache.getline(__file__, caught.value.line).strip() == caught.value.source


def test_a_global_that_is_not_constexpr_is_found_here_because_the_interpreter_takes_it():
    with pytest.raises(CompileError, match="global variable NOT_CONSTEXPR"):
        compile_kernel(names_a_plain_global, {"x_ptr": "*fp32"})


def test_missing_and_unknown_arguments_are_named():
    with pytest.raises(TypeError, match=r"No type or value is given for n, KIND\. It has no m\."):
        compile_kernel(with_parts, {"out_ptr": "*fp16", "x_ptr": "*fp32", "m": "i32"})
    with pytest.raises(ValueError, match=r"name of a card \(T4, .*75 \(T4, RTX 2080 Ti\).*got 70"):
        compile_kernel(broken, {"x_ptr": "*fp32"}, arch=70)


@pytest.mark.parametrize(
    ("arch", "instruction"),
    [("T4", None), ("RTX 3090", "mma"), pytest.param(100, "tcgen05", marks=pytest.mark.slow), ("RTX 5090", "mma")],
)
def test_a_card_may_be_named_and_its_products_are_its_own(arch, instruction):
    types = POINTERS | dict.fromkeys(("c_ptr", "a_ptr", "b_ptr"), "*fp16")
    made = compile_kernel(matmul, types, {"M": 64, "N": 64, "BLOCK_K": 16}, arch=arch, num_stages=2)
    used = {name for name in ("mma", "wgmma", "tcgen05") if made.instructions[name]}
    assert made.fits and used == ({instruction} if instruction else set())
    assert made.shared_limit_bytes == architecture(arch).shared_limit_bytes
    assert str(arch) in str(made), "the card is named as people know it"
    if not instruction:
        assert "Triton does not use the tensor cores of sm_75" in " ".join(made.warnings)


def test_a_result_is_kept_and_a_damaged_one_is_made_again(monkeypatch, tmp_path):
    monkeypatch.setenv("SPEED_OF_LIGHT_CACHE", str(tmp_path))
    arguments = (with_parts, {"out_ptr": "*fp16", "x_ptr": "*fp32", "n": "i32"}, {"KIND": tl.float16, "BLOCK": 512})
    first = compile_kernel(*arguments)
    (path,) = cache_folder().glob("compiled-*.json")
    compiled._answer.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_compile_in_fresh_process", lambda request: pytest.fail("compiled again"))
        assert compile_kernel(*arguments) == first
    compiled._answer.cache_clear()
    path.write_text(path.read_text()[:100])
    assert compile_kernel(*arguments) == first
    assert json.loads(path.read_text())["ptx"] == first.ptx


def test_a_crash_of_the_compiler_is_an_error_and_is_not_kept(monkeypatch, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    monkeypatch.setattr(compiled, "_WORKER", worker)
    monkeypatch.setenv("SPEED_OF_LIGHT_CACHE", str(tmp_path / "cache"))
    with pytest.raises(CompileError, match=r"crashed \(exit status -9\)"):
        compile_kernel(broken, {"x_ptr": "*fp32"})
    assert not cache_folder().exists()


def test_the_first_step_alone_says_which_line_is_not_taken():
    assert why_not(with_parts, {"out_ptr": "*bf16", "x_ptr": "*fp32", "n": "i32"}, {"KIND": tl.bfloat16}) == ""
    assert "tl.arange(0, 3)" in why_not(broken, {"x_ptr": "*fp32"}, {})
    with pytest.raises(CompileError):  # nothing that the kernel could help
        why_not(broken, {"x_ptr": "a list"}, {})


def test_one_process_reads_many_kernels_and_a_crash_costs_only_the_one_it_came_at(monkeypatch, tmp_path):
    kinds = {"x_ptr": "*fp32"}
    whys = why_not_each(
        [(broken, kinds, {}), (broken, {"x_ptr": "a list"}, {}), (print, kinds, {}), (broken, kinds, {})]
    )
    assert whys[0] == whys[3] == why_not(broken, kinds, {})
    assert isinstance(whys[1], CompileError) and isinstance(whys[2], TypeError)
    once = tmp_path / "once"
    worker = tmp_path / "worker.py"
    worker.write_text(
        f"import os, sys\nprint('{{}}', flush=True)\n"
        f"if os.path.exists({str(once)!r}): sys.exit()\nopen({str(once)!r}, 'w'); os._exit(3)\n"
    )
    monkeypatch.setattr(compiled, "_WORKER", worker)
    whys = why_not_each([(broken, kinds, {})] * 3)
    assert whys[0] == whys[2] == "" and "exit status 3" in str(whys[1])
