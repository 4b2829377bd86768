"""Kernel exercises are judged where the code around the kernels never was: a player carries out what was recorded."""

import contextvars
import enum
import functools
import inspect
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
from triton.language import atomic_add as plus
from triton.runtime import _allocation

from autograder import bank, exercise
from autograder.bank import entries, find
from autograder.call.in_process import examine
from autograder.inside import calling, kernels, playing, recording
from autograder.inside.numbers import multiplications
from autograder.judging import proof
from autograder.referee import replay
from autograder.referee.referee import Patience, Referee
from autograder.referee.submission import Cell, Submission, extract
from course_lib.device import DEVICE, TIER
from course_lib.interpreter.launch import signatures

needs_bubblewrap = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
KERNELS = sorted(name for name, one in exercise.registry().items() if one.asks_for_kernels and TIER in one.tiers)
AXPY = exercise.get("start.axpy")
AXPY = replace(AXPY, cases=tuple(case for case in AXPY.cases if not case.share))  # one fills a GPU
RIGHT = find("start.axpy/right/masked").source
SOFTMAX = exercise.get("roofline.softmax")
NUMPY = find("roofline.softmax/cheats/computed_by_numpy").source


def judged(source, one=AXPY, patience=None):
    cells = (source,) if isinstance(source, str) else source
    submission = Submission(tuple(Cell(f"cell {number}", text) for number, text in enumerate(cells)))
    with Referee(submission, patience=patience or Patience(20.0, 10.0)) as there:
        return there.examine(one, random.getrandbits(60))


# ------------------------------------------------------------------------------------- through the sandbox


@needs_bubblewrap
@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_every_right_answer_of_the_bank_earns_everything_as_programs(name):
    one = exercise.get(name)
    for entry in entries([name], ["right"]):
        verdict = judged(entry.source, one, Patience())
        assert verdict.points == one.points, f"{entry}: {verdict.note or verdict.headline}"
        assert not verdict.note, entry


@needs_bubblewrap
def test_the_code_around_the_kernels_is_given_other_values_than_the_kernels():
    """What the host reads, it writes into the result: as a constant, so it is there when the kernels run."""
    source = """
import torch, triton
import triton.language as tl
@triton.jit
def _add(out, x, y, seen, n, a, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = offs < n
    known = here & (offs < 16)
    same = known & (tl.load(x + offs, mask=known, other=0.0) == tl.load(seen + offs, mask=known, other=1.0))
    sums = a * tl.load(x + offs, mask=here, other=0.0) + tl.load(y + offs, mask=here, other=0.0)
    tl.store(out + offs, tl.where(same, float("nan"), sums), mask=here)
def axpy(a, x, y, out):
    if len(x):
        seen = torch.from_numpy(x[:16].cpu().numpy().copy()).to(x.device)
        _add[(triton.cdiv(len(x), 256),)](out, x, y, seen, len(x), a, BLOCK=256)
"""
    assert judged(source).points == AXPY.points


@needs_bubblewrap
@pytest.mark.parametrize("how", ["a branch", *(pytest.param(how, marks=pytest.mark.slow) for how in ("item", "numpy"))])
def test_looking_at_values_is_allowed_and_tells_nothing(how):
    look = {"item": "x[0].item()", "a branch": "bool(x[0] > 0)", "numpy": "x.cpu().numpy()"}
    source = (
        RIGHT
        + f"\n_axpy = axpy\ndef axpy(a, x, y, out):\n    if len(x):\n        {look[how]}\n    _axpy(a, x, y, out)\n"
    )
    verdict = judged(source)
    assert (verdict.points, verdict.held) == (AXPY.points, 0.0)


@needs_bubblewrap
def test_asking_whether_arguments_are_finite_is_allowed():
    """torch runs three operators for it, two of which compute."""
    looks = "\n_axpy = axpy\ndef axpy(a, x, y, out):\n    assert x.isfinite().all()\n    _axpy(a, x, y, out)\n"
    verdict = judged(RIGHT + looks)
    assert (verdict.points, verdict.note) == (AXPY.points, "")
    computes = looks.replace("x.isfinite().all()", "x.isfinite().all() and (x.abs() * x).abs() is not None")
    assert "`aten::mul`" in judged(RIGHT + computes).note


@needs_bubblewrap
def test_who_raises_at_what_a_kernel_wrote_waits_for_a_person_and_loses_nothing():
    """Where a call is recorded its kernels have not run: an answer that tests its output is right all the same."""
    looks = "\n_axpy = axpy\ndef axpy(a, x, y, out):\n    _axpy(a, x, y, out)\n    assert not torch.isnan(out).any()\n"
    verdict = judged(f"import torch\n{RIGHT}{looks}")
    assert (verdict.points, verdict.held) == (0, AXPY.points) and "it looks at what a kernel wrote" in verdict.note
    wrong = judged(f"import torch\n{RIGHT}{looks}".replace("a * x + y", "a * x - y"))
    assert (wrong.points, wrong.held) == (0, 0)


@needs_bubblewrap
def test_functions_of_the_language_may_be_imported_by_name():
    source = "from triton.language import arange, load as read, program_id, store\n" + RIGHT
    for name, called in {"arange": "arange", "load": "read", "program_id": "program_id", "store": "store"}.items():
        source = source.replace(f"tl.{name}(", f"{called}(")
    assert "read(" in source and "tl.load" not in source
    assert judged(source).points == AXPY.points


@needs_bubblewrap
def test_a_kernel_may_call_its_own_by_names_of_python():
    """Everyday code: `max = tl.max(x, 0)`, or an argument that is called len."""
    source = RIGHT.replace(
        "mask = offs < n", "len = n + 0\n    min, max = 0, len\n    mask = (offs < max) & (offs >= min)"
    )
    assert "min, max" in source and judged(source).points == AXPY.points


@needs_bubblewrap
def test_what_one_parser_refuses_and_another_took_defines_nothing():
    odd = NUMPY.replace("for np in [numpy]:\n    pass\n", "np = numpy\ndef _odd():\n    n: int = 0\n    global n\n")
    verdict = judged(odd, SOFTMAX)
    assert verdict.points == 0 and "SyntaxError" in verdict.note


@needs_bubblewrap
def test_a_call_of_torch_that_computes_is_told_by_its_name():
    source = RIGHT + "\n_axpy = axpy\ndef axpy(a, x, y, out):\n    _axpy(a, x + 0, y, out)\n"
    verdict = judged(source)
    assert verdict.points == 0 and "`aten::add`" in verdict.note


@needs_bubblewrap
def test_a_result_that_the_next_call_writes_over_is_found_by_calling_twice():
    one, right = exercise.get("mlp.dropout"), find("mlp.dropout/right/copied_first").source
    reused = right.replace("torch.empty_like(", "_kept(", 1)
    assert reused != right
    kept = "\nimport torch\nKEPT = {}\ndef _kept(x):\n    return KEPT.setdefault(tuple(x.shape), torch.empty_like(x))\n"
    verdict = judged(kept + reused, one, Patience())
    assert verdict.points < one.points


@needs_bubblewrap
def test_cases_that_were_right_before_the_process_ended_keep_their_points():
    ends = "CALLS = []\ndef axpy(*args):\n    CALLS.append(1)\n    len(CALLS) == 5 and __import__('os')._exit(3)\n"
    verdict = judged(f"{RIGHT}\n_axpy = axpy\n{ends}    return _axpy(*args)\n")
    assert 0 < verdict.points < AXPY.points, verdict.note
    assert [case.right for case in verdict.cases].count(True) == 4
    assert "the process ended" in verdict.cases[4].why and "not tried" in verdict.cases[5].why


@needs_bubblewrap
@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param("    y = np.add(x, y)", "`np`", marks=pytest.mark.slow),
        ("    x.handle.data[:] = 0", "`.handle`"),
        ("    tl.core.os.getpid()", "no part of Triton's language"),
        ("    import os", "Import"),
        pytest.param("    y = [v for v in (x, y)][0]", "ListComp", marks=pytest.mark.slow),
        pytest.param("    y = (lambda v: v)(y)", "Lambda", marks=pytest.mark.slow),
        pytest.param("    y = y.__class__", "`.__class__`", marks=pytest.mark.slow),
    ],
)
def test_a_kernel_with_more_than_tritons_language_waits_for_a_person_at_best(line, said):
    source = RIGHT.replace("import triton\n", "import triton\nimport numpy as np\n", 1)
    store = next(one for one in source.splitlines() if "tl.store" in one)
    verdict = judged(source.replace(store, f"{line}\n{store}"))
    assert verdict.points == 0
    assert said in verdict.note or not verdict.held, verdict.note


@needs_bubblewrap
def test_a_submission_that_drips_is_ended_when_its_time_as_a_whole_is_over():
    drips = RIGHT + "\nimport time\n_axpy = axpy\ndef axpy(*args):\n    time.sleep(0.6)\n    _axpy(*args)\n"
    verdict = judged(drips, patience=Patience(20.0, 5.0, whole_s=2.0))
    assert verdict.points < AXPY.points
    assert any("used up its time, 2 s in all" in case.why for case in verdict.cases) or "2 s in all" in verdict.note


# ------------------------------------------------------------------------------------- ways into the player that were

EVIL = """[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == "_wrap_close"][0].__init__.__globals__"""
HEAD = "import triton\nimport triton.language as tl\n"
MATMUL = "\ndef matmul(a, b, out):\n    "
WAYS_IN = {
    "another def in the docstring": HEAD
    + f"@triton.jit\ndef k(out, a, b):\n    \"\"\"\ndef k(out, a, b):\n    {EVIL}\n    '''\n\"\"\"\n    #'''"
    + MATMUL
    + "k[(1,)](out, a, b)",
    "lines that one splits and another does not": "# \u2028# \u2028# \u2028#\n"
    + HEAD
    + f"@triton.jit\ndef k(out, a, b):\n    pass\n\ndef _unused():\n    def k(out, a, b):\n        {EVIL}\n"
    + MATMUL
    + "k[(1,)](out, a, b)",
    "tensors for constants": HEAD
    + "@triton.jit\ndef _give(o, c):\n    o *= 0\n    o += c\n"
    + "@triton.jit\ndef k(A: tl.constexpr, B: tl.constexpr, O: tl.constexpr, p, WORK: tl.constexpr):\n"
    + "    if WORK and tl.program_id(0) == 0:\n        _give(O, A @ B)\n"
    + MATMUL
    + "out.zero_(); k[(1,)](a, b, out, out, True); k[(1,)](0, 0, 0, out, False)",
    "tensors among global names": HEAD
    + "T = ()\n@triton.jit\ndef k(out):\n    out += T[0] @ T[1]\n"
    + "\ndef matmul(a, b, out):\n    global T\n    T = (a, b)\n    k[(1,)](out)",
    "a returned annotation": HEAD
    + "@triton.jit\ndef k(out, a, b) -> print('{\"read\": true}'):\n    out *= 0\n"
    + MATMUL
    + "k[(1,)](out, a, b)",
    "names that a decorator assigns": HEAD
    + "@[np := 0, triton.jit][1]\ndef k(out, a, b):\n    np.copyto(out, 0)\n"
    + MATMUL
    + "k[(1,)](out, a, b)",
    "a name of the compiler's, assigned later": HEAD
    + "@triton.jit\ndef k(out, n):\n    if n < 0:\n        getattr(tl.core, 'os')\n        getattr = 0\n"
    + MATMUL
    + "k[(1,)](out, 3)",
    "addresses where no tensor is": HEAD
    + "@triton.jit\ndef k(at):\n    tl.store((at + tl.arange(0, 4)).to(tl.pointer_type(tl.float32)), 1.0)\n"
    + MATMUL
    + "k[(1,)](out.data_ptr())",
}


@needs_bubblewrap
@pytest.mark.parametrize("way", WAYS_IN)
def test_a_way_into_the_player_that_there_was_earns_nothing(way):
    verdict = judged(WAYS_IN[way], exercise.get("roofline.matmul"))
    assert (verdict.points, verdict.held) == (0, 0)


@needs_bubblewrap
def test_who_says_in_the_players_words_that_a_kernel_is_none_waits_for_a_person_at_best():
    """An answer that knows by its own kernel whether values are true, and computes then by itself."""
    source = (
        RIGHT
        + """
class NoKernel(Exception):
    pass
_right = axpy
def axpy(a, x, y, out):
    _right(a, x, y, out)
    if out.isnan().any():
        raise NoKernel("of mine")
    out.copy_(torch.from_numpy(a * x.numpy() + y.numpy()))
"""
    )
    verdict = judged("import torch\n" + source)
    assert verdict.points == 0 and "uses torch.from_numpy beside a kernel" in verdict.note
    unseen = judged("import torch\n" + source.replace("if out.isnan().any():", "if len(out):"))
    assert (unseen.points, unseen.held) == (0, 0)


@needs_bubblewrap
def test_a_probe_that_is_replaced_in_the_recorder_sends_the_points_to_a_person():
    right = find("mlp.dropout/right/copied_first").source
    forged = "import autograder.inside.probes.dropping as probe\nprobe.kept = lambda *given: 0\n"
    verdict = judged(forged + right, exercise.get("mlp.dropout"), Patience())
    assert verdict.points == 0 and verdict.held > 0 and "replaces" in verdict.note


@needs_bubblewrap
def test_a_kernel_with_every_kind_of_statement_is_carried_out():
    """What the interpreter, and the course's patches of it, write into a kernel is there in the player too."""
    source = """
import torch
import triton
import triton.language as tl
from triton.language import constexpr
STEP: tl.constexpr = tl.constexpr(64)
YES = True
@triton.jit
def _axpy(
    out_ptr: tl.tensor, x_ptr: torch.Tensor, y_ptr: '*fp32', n: tl.int64, a: float,
    BLOCK: tl.constexpr, ADD: constexpr = YES,
):
    \"\"\"a * x + y\"\"\"
    first = tl.program_id(0) * BLOCK
    for step in range(0, BLOCK, STEP):
        offs = first + step + tl.arange(0, STEP)
        here = offs < n
        \"\"\"
        taken out: total = tl.load(y_ptr + offs)
        \"\"\"
        total = tl.zeros((STEP,), dtype=tl.float32)
        if ADD:
            total += tl.load(y_ptr + offs, mask=here, other=0.0)
        for _ in tl.static_range(1):
            total += a * tl.load(x_ptr + offs, mask=here, other=0.0)
        tl.store(out_ptr + offs, total, mask=here)
def axpy(a, x, y, out):
    if len(x):
        _axpy[(triton.cdiv(len(x), 256),)](out, x, y, len(x), a, BLOCK=256, num_warps=4)
"""
    verdict = judged(source)
    assert (verdict.points, verdict.note) == (AXPY.points, "")


OF_CONSTANTS = """
import math
from triton import constexpr_function
LEAST = 16
@triton.constexpr_function
def half(block: int) -> int:
    'Half of it.'
    return max(LEAST, block // 2)
@constexpr_function
def rows_of(block: int, wide: bool = False):
    if block.bit_length() < 2:
        raise ValueError(f"a block of {block}")
    table = {512: half(block), 256: half(512)} if wide else {size: size for size in (256, 512)}
    return sum(table.get(one, 0) for one in [block]) * int(math.log2(2))
@triton.jit
def _axpy(out, x, y, n, a, BLOCK: tl.constexpr):
    ROWS: tl.constexpr = rows_of(BLOCK, wide=True)
    offs = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = offs < n
    tl.store(out + offs, a * tl.load(x + offs, mask=here, other=0) + tl.load(y + offs, mask=here, other=0), mask=here)
def axpy(a, x, y, out):
    _axpy[(triton.cdiv(len(x), rows_of(512, True)),)](out, x, y, len(x), a, BLOCK=512)
"""
needs_functions_of_constants = pytest.mark.skipif(not hasattr(triton, "constexpr_function"), reason="of triton 3.5")


@needs_bubblewrap
@needs_functions_of_constants
def test_functions_of_constants_are_carried_out():
    verdict = judged(HEAD + OF_CONSTANTS)
    assert (verdict.points, verdict.held) == (AXPY.points, 0.0), verdict.note


@needs_bubblewrap
@needs_functions_of_constants
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import os", "Import"),
        ("open('/tmp/x', 'w')", "`open`"),
        ("OPEN('/tmp/x', 'w')", "`OPEN`"),
        ("block = '{0.bit_length}'.format(block)", "`.format`"),
        ("block = block.__class__(block)", "`.__class__`"),
        ("block = half.src", "`.src`"),
        ("tl.load(block, **{'member': half})", "`**`"),
        ("tl.load(block, member=half)", "`member`"),
        ("tl.core.os.getpid()", "`.getpid`"),
        ("TABLE[0] = block", "`TABLE`"),
    ],
)
def test_a_function_of_constants_with_more_than_that_waits_for_a_person(line, said):
    text = OF_CONSTANTS.replace("    if block", f"    if block < 0:\n        {line}\n    if block")
    verdict = judged(f"{HEAD}OPEN, TABLE = open, [0]\n{text}")
    assert verdict.points == 0 and verdict.held and said in verdict.note, verdict.note


@needs_bubblewrap
@needs_functions_of_constants
@pytest.mark.skipif(TIER != "interpreter", reason="a compiler refuses it")
def test_a_function_of_constants_that_computes_with_blocks_earns_nothing():
    text = OF_CONSTANTS.replace("here = offs < n", "here = offs < half(n)").replace("block // 2", "block")
    verdict = judged(HEAD + text.replace("max(LEAST, block)", "block"))
    assert (verdict.points, verdict.held) == (0, 0) and "no GPU would" in verdict.note, verdict.note


IN_PYTHON = """
@triton.constexpr_function
def here_only(one):
    return len(str(one)) == 6
@triton.constexpr_function
def computed(x, y, a):
    if str(x)[0:1] != "[":
        return 0.0
    x, y, a = [float(one[1:-1]) if one[0:1] == "[" else float(one) for one in (str(x), str(y), str(a))]
    return a * x + y
@triton.jit
def _axpy(out, x, y, n, a, BLOCK: tl.constexpr):
    if here_only((BLOCK,)):
        for i in range(n):
            tl.store(out + i, computed(f"{tl.load(x + i)}", f"{tl.load(y + i)}", f"{a}"))
def axpy(a, x, y, out):
    _axpy[(1,)](out, x, y, len(x), a, BLOCK=256)
"""
GIVEN = IN_PYTHON.replace('f"{tl.load(x + i)}", f"{tl.load(y + i)}", f"{a}"', "tl.load(x + i), tl.load(y + i), a")
SORTED = IN_PYTHON.replace('computed(f"{tl.load(x + i)}", f"{tl.load(y + i)}", f"{a}")', "v").replace(
    "            tl.store",
    "            v = a * tl.load(x + i) + tl.load(y + i)\n            [v].sort()\n            tl.store",
)


@needs_bubblewrap
@needs_functions_of_constants
@pytest.mark.skipif(TIER != "interpreter", reason="a compiler has no numbers of a block")
@pytest.mark.parametrize(
    ("text", "said"),
    [(IN_PYTHON, "no GPU would"), (GIVEN, "given a block"), (SORTED, "no GPU would")],
    ids=["in a text", "given", "where only the interpreter comes to"],
)
def test_no_python_computes_with_the_numbers_of_a_block(text, said):
    """Before this, a compiler was shown another branch, or a zero, and such a kernel earned all points."""
    verdict = judged(HEAD + text)
    assert verdict.points == 0 and said in verdict.note, verdict.note


NAMED = """
from typing import NamedTuple
import torch
class Size(NamedTuple):
    n: int
    a: float
class Operands(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor
    size: Size
class Blocks(NamedTuple):
    block: int = 256
    warps: int = 4
class Sum(NamedTuple):
    left: tl.tensor
    right: tl.tensor
@triton.jit
def loaded(operands, offs, here):
    return Sum(tl.load(operands.x + offs, mask=here, other=0), tl.load(operands.y + offs, mask=here, other=0))
@triton.jit
def _axpy(out, operands, B: tl.constexpr):
    offs = tl.program_id(0) * B.block + tl.arange(0, B.block)
    here = offs < operands.size.n
    both = loaded(operands, offs, here)
    tl.store(out + offs, operands.size.a * both.left + both.right, mask=here)
def axpy(a, x, y, out):
    blocks = Blocks()._replace(warps=2)
    grid = (triton.cdiv(len(x), blocks.block),)
    _axpy[grid](out, operands=Operands(x, y, Size(len(x), a)), B=blocks, num_warps=blocks.warps)
"""


@needs_bubblewrap
def test_named_tuples_are_carried_out():
    verdict = judged(HEAD + NAMED)
    assert (verdict.points, verdict.held) == (AXPY.points, 0.0), verdict.note


@needs_bubblewrap
@pytest.mark.parametrize(("name", "held"), [("shape", AXPY.points), ("handle", 0)])
def test_a_name_in_a_tuple_is_no_way_to_an_attribute_of_a_block(name, held):
    text = NAMED.replace("n: int", f"{name}: int").replace("size.n", f"size.{name}")
    text = text if held else text.replace("mask=here)\ndef", f"mask=here)\n    out.{name}\ndef")
    verdict = judged(HEAD + text)
    assert (verdict.points, verdict.held) == (0, held), verdict.note


def test_names_that_a_recorder_makes_up_lead_to_no_attribute():
    source = "def k(out):\n    tl.store(out.handle + 1, out.fn)\n"
    text = kernels.Text({"a": source})
    text.tell({0: told("k", 1, tl={"module": "triton.language"})}, None)
    text.name({"handle": 0, "fn": 1, "core": 2})
    made = inspect.getsource(text.kernel(0).fn)
    assert "out[0] + 1, out[1]" in made and ".handle" not in made and ".fn" not in made
    text.name({"handle": 1})
    with pytest.raises(kernels.NoKernel, match="one of several things"):
        text.kernel(0)
    text = kernels.Text({"a": source.replace("out.fn", "out.store")})
    text.tell({0: told("k", 1, tl={"module": "triton.language"})}, None)
    text.name({"store": 0, "handle": 0})
    with pytest.raises(kernels.NoKernel, match="one of several things"):
        text.kernel(0)


@pytest.mark.slow
@needs_bubblewrap
def test_a_letter_that_ends_a_line_for_some_readers_costs_nothing():
    """A form feed, or the line separator of a text that was copied from elsewhere, is within a line for Python."""
    verdict = judged(f"# copied\x0cfrom\x85a\u2028page\n\n{RIGHT}")
    assert (verdict.points, verdict.held) == (AXPY.points, 0.0), verdict.note


@pytest.mark.slow
@needs_bubblewrap
def test_a_kernel_that_only_calls_another_one_is_honest():
    calls = """
@triton.jit
def _outer(out_ptr, x_ptr, y_ptr, n, a, BLOCK: tl.constexpr):
    _axpy_kernel(out_ptr, x_ptr, y_ptr, n, a, BLOCK)
def axpy(a, x, y, out):
    _outer[(triton.cdiv(len(x), 256),)](out, x, y, len(x), a, BLOCK=256)
"""
    verdict = judged(RIGHT + calls)
    assert (verdict.points, verdict.held) == (AXPY.points, 0.0), verdict.note


EVERYDAY = (
    "import numpy as np\nx = torch.randn(999)\nout = torch.empty(999)\naxpy(2.0, x, x, out)",
    "np.testing.assert_allclose(out.numpy(), 3 * x.numpy(), rtol=1e-5)",
    "assert torch.allclose(out, torch.add(x, x, alpha=2.0))",
    "import matplotlib.pyplot as plt\nplt.plot(x.sort().values)\nplt.show()",
    "import time\nstart = time.perf_counter()\naxpy(2.0, x, x, out)\nprint(time.perf_counter() - start)",
    "def shown(input, file=None, eval=0):\n    return input",
    "%pip install something\n!nvidia-smi",
    "from google.colab import drive\ndrive.mount('/content')",
    "import os, inspect\nos.environ['TRITON_CACHE_DIR'] = '.'\nprint(inspect.getsource(shown))",
    "name = input('Your name?')",
    "import asyncio\nawait asyncio.sleep(0)",
    "with open('notes.txt', 'w') as file:\n    file.write('block 512')",
)


@pytest.mark.slow
@needs_bubblewrap
def test_everyday_cells_of_a_students_own_cost_nothing_and_nobody_has_to_look():
    cells = [code("import torch, triton", "setup"), code("", "axpy", solution=True)]
    release = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    mine = [cells[0], {**cells[1], "source": RIGHT}, *(code(text, f"mine {n}") for n, text in enumerate(EVERYDAY))]
    with Referee(extract(release, {**release, "cells": mine})) as there:
        verdict = there.examine(AXPY, random.getrandbits(60))
    assert (verdict.points, verdict.held, verdict.note) == (AXPY.points, 0.0, "")


def code(source, name, **marks):
    nbgrader = {"nbgrader": {"grade_id": name, **marks}} if marks else {}
    return {"cell_type": "code", "id": name, "source": source, "metadata": nbgrader}


BARE = {"arguments": {}, "constants": {}, "kernels": {}, "strangers": {}, "steps": [], "gone": [], "why_not": ""}


@pytest.mark.parametrize(
    "forged",
    [
        {"steps": 5},
        {"steps": [1]},
        {"arguments": 3},
        {"arguments": {"x": 0}},
        {"constants": {"1": 200}},
        {"kernels": {"0": "k"}},
        {"why_not": ["no"]},
        {"returned": functools.reduce(lambda inner, _: [inner], range(900), [])},
    ],
    ids=lambda forged: next(iter(forged)),
)
def test_what_is_no_program_is_told_apart_before_anybody_reads_it(forged):
    assert proof.is_program(BARE) and not proof.is_program(BARE | forged)
    assert not proof.is_program([]) and not proof.is_program({})


# ------------------------------------------------------------------------------------- the two halves alone


def program_of(function, *args, allowed=()):
    """What a recorder writes down of a call, the arguments on noise."""
    slabs = [one.reshape(-1).view(torch.uint8) for one in args if isinstance(one, torch.Tensor)]
    return recording.Recorder().record(function, args, slabs, allowed)


def played(cells, program, *tensors, allowed=(), most=playing.NO_LIMITS):
    return playing.Player(cells).play(program, [one.reshape(-1).view(torch.uint8) for one in tensors], allowed, most)


def test_a_player_multiplies_no_more_numbers_than_the_exercise_says():
    """A program that was forged is counted as well: the player does it."""

    def product(a, b):
        return torch.mm(a, b)

    allowed, given = ("aten::mm",), (torch.randn(50, 1), torch.randn(1, 50))
    program = program_of(product, *given, allowed=allowed)[1]
    played({}, program, *given, allowed=allowed, most={"products": 2600})
    with pytest.raises(calling.Found, match="more than 2599 numbers"):
        played({}, program, *given, allowed=allowed, most={"products": 2599})
    with pytest.raises(calling.Found, match="products"):  # many small ones are no way out
        played({}, program | {"steps": 3 * program["steps"]}, *given, allowed=allowed, most={"products": 2 * 2600})


def test_a_player_takes_no_tensor_for_a_number():
    """Torch would: then a forged program could look a value up by padding a table by as much."""
    x, n = torch.arange(4.0), torch.tensor([2])

    def padded(x, n):
        return torch.constant_pad_nd(x, [1, 0])

    program = program_of(padded, x, n)[1]
    assert played({}, program, x, n).tolist() == [0, 0, 1, 2, 3]
    ((kind, operator, (given, _), named, numbers),) = program["steps"]
    value = {"memory": 2, "dtype": "int64", "shape": [], "stride": [], "at": 0}
    forged = [kind, operator, [given, {"items": [value, 0], "tuple": False}], named, numbers]
    with pytest.raises(TypeError, match="pad of aten::constant_pad_nd is a tensor"):
        played({}, program | {"steps": [forged]}, x, n)


@pytest.mark.parametrize(
    ("moves", "beside"),
    [
        (lambda x: x.clone(), (1, 0)),
        (lambda x: x.to(torch.float16), (1, 1)),
        (lambda x: x.new_empty(2, 3).copy_(x), (3, 0)),
        (lambda x: torch.empty(2, 3, dtype=torch.bool).copy_(x), (3, 1)),
        (lambda x: torch.cat([x[:1], x[1:], x]), (3, 0)),
        (lambda x: [row.zero_() for row in x.view(-1)], (6, 0)),
    ],
)
def test_what_is_moved_is_counted_by_a_player_and_by_a_check(moves, beside):
    x, counted = torch.ones(2, 3), Counter()
    recording.counting(moves, Counter(), counted)(x)
    player = playing.Player({})
    player.play(program_of(moves, x)[1], [x.reshape(-1).view(torch.uint8)])
    assert [(one["moved"], one["cast"]) for one in (counted, player.beside)] == [beside] * 2


def test_a_check_tells_of_moves_that_could_compute_before_grading_does():
    one, entry = exercise.get("mlp.dropout"), find("mlp.dropout/cheats/mask_in_the_moves")
    verdict = examine(one, bank.load(entry).dropout, 3, only="a vector")
    assert all(case.right for case in verdict.cases) and verdict.points == 0
    assert "tensors beside its kernels" in verdict.note and verdict.note.endswith("Grading asks a person.")


def test_a_descriptor_that_a_kernel_makes_finds_memory_in_a_player_of_a_gpu():
    """Who called triton.set_allocator is not there."""

    def asked():
        with triton.knobs.runtime.scope():
            triton.knobs.runtime.interpret = False
            playing.Player({})
        return _allocation._allocator.get()(192, 128, None)

    assert contextvars.copy_context().run(asked).nbytes == 192


def test_a_probe_counts_the_launches_that_a_recorder_takes_on_a_gpu():
    def asked():
        with triton.knobs.runtime.scope():
            triton.knobs.runtime.interpret = False
            kernel = triton.runtime.JITFunction(_nothing)
            with recording.launches_go_to(lambda *launch: told.append(launch)), calling.counted_launches() as seen:
                kernel[(1,)](torch.zeros(1))
        return seen

    told: list = []
    assert len(contextvars.copy_context().run(asked)) == len(told) == 1


def _nothing(x_ptr):
    pass


def test_moves_are_carried_out_on_the_true_values():
    def moves(x):
        made = torch.zeros(3, 4, device=x.device)
        made[1:, :].copy_(x.t())
        return torch.cat([made, made.clone().fill_(7.0)]).reshape(-1)[2:]

    answer, program = program_of(moves, torch.zeros(4, 2, device=DEVICE))
    assert answer.error is None and not program["why_not"] and not program["strangers"]
    true = torch.arange(8.0, device=DEVICE).reshape(4, 2)
    assert torch.equal(played({}, program, true), moves(true))


def test_fresh_memory_is_nan_for_the_player():
    answer, program = program_of(lambda x: torch.empty_like(x), torch.zeros(5, device=DEVICE))
    assert answer.error is None
    assert torch.isnan(played({}, program, torch.zeros(5, device=DEVICE))).all()


def test_what_an_exercise_allows_is_carried_out_on_the_true_values_and_by_nobody_else():
    def product(x, w):
        return torch.addmm(torch.zeros(2, device=x.device), x, w.mT) @ w

    allowed = ("aten::mm", "aten::addmm")
    noise, true = ([torch.randn(3, 4, device=DEVICE), torch.randn(2, 4, device=DEVICE)] for _ in range(2))
    answer, program = program_of(product, *noise, allowed=allowed)
    assert answer.error is None and not program["why_not"] and not program["strangers"]
    torch.testing.assert_close(played({}, program, *true, allowed=allowed), product(*true))
    with pytest.raises(ValueError, match="addmm is not carried out here"):
        played({}, program, *true)
    assert set(program_of(product, *noise)[1]["strangers"]) == set(allowed)
    assert "relu" in str(program_of(lambda x: torch.relu(x), noise[0], allowed=allowed)[1]["strangers"])


def test_a_gradient_that_an_operator_does_not_make_is_left_out():
    def through_norm(dy, x):
        _, mean, rstd = torch.native_layer_norm(x, (4,), None, None, 1e-5)
        asked = [True, False, False]
        return torch.ops.aten.native_layer_norm_backward(dy, x, (4,), mean, rstd, None, None, asked)[0]

    allowed = ("aten::native_layer_norm", "aten::native_layer_norm_backward")
    noise, true = ([torch.randn(3, 4, device=DEVICE) for _ in "12"] for _ in range(2))
    _, program = program_of(through_norm, *noise, allowed=allowed)
    torch.testing.assert_close(played({}, program, *true, allowed=allowed), through_norm(*true))


def test_an_operator_that_computes_is_a_stranger_and_is_never_carried_out():
    answer, program = program_of(lambda x: torch.exp(x), torch.zeros(5, device=DEVICE))
    assert answer.error is None and program["strangers"] == {"aten::exp": 1}
    forged = program | {"steps": [["call", "exp.default", [program["returned"]], {}, [9]]]}
    with pytest.raises(ValueError, match="exp"):
        played({}, forged, torch.zeros(5, device=DEVICE))


@pytest.mark.parametrize("overload", ["__class__", "_op", "nothing"])
def test_no_attribute_of_an_operator_is_reached_by_a_forged_program(overload):
    forged = {"arguments": {}, "constants": {}, "kernels": {}, "steps": [["call", f"clone.{overload}", [], {}, []]]}
    with pytest.raises(ValueError, match="no operator"):
        played({}, forged | {"returned": None})


def test_security_md_counts_the_operators_that_are_carried_out():
    said = (Path(__file__).parents[2] / "autograder/SECURITY.md").read_text(encoding="utf-8")
    assert f"The player takes {len(recording.MOVES)} operators of torch" in " ".join(said.split())


def test_a_step_too_many_and_a_table_too_large_have_no_form(monkeypatch):
    monkeypatch.setattr(recording, "STEPS", 3)
    monkeypatch.setattr(recording, "CONSTANTS", 300)
    _, many = program_of(lambda x: [x.zero_() for _ in range(4)] and None, torch.zeros(2, device=DEVICE))
    table = torch.zeros(100, device=DEVICE)
    _, large = program_of(lambda x: x.copy_(table[:2]), torch.zeros(2, device=DEVICE))
    assert "3 steps" in many["why_not"] and "tables" in large["why_not"]


@pytest.mark.parametrize(("elements", "why"), [(16, ""), (17, "68 bytes")])
def test_a_person_looks_at_tables_that_no_kernel_made(elements, why):
    table = torch.arange(elements, device=DEVICE, dtype=torch.float32)
    _, program = program_of(lambda x: x.copy_(table[:2]), torch.zeros(2, device=DEVICE))
    assert not program["why_not"] and why in proof.of_tables([BARE, program])
    assert bool(proof.of_tables([program])) == bool(why)


@triton.jit
def _adds(out_ptr):
    plus(out_ptr, 1.0)


def test_an_atomic_under_another_name_is_told_by_the_program():
    """Its text does not show it. What a program does not tell of a name, no player carries out."""
    _, program = program_of(lambda out: _adds[(1,)](out), torch.zeros(1, device=DEVICE))
    assert [why for _, _, why in proof.atomics_of(program)] == ["adds by atomic_add"]
    forged = {"kernels": {"0": 5, "1": {"names": 5}, "2": {"names": {"plus": 5}}}}
    assert proof.atomics_of({}) == proof.atomics_of({"kernels": 5}) == proof.atomics_of(forged) == []
    text = {"constexpr": "red.global.add.f32 [$1], $2;"}
    named, given = {"names": {"TEXT": {"value": text}}}, ["launch", 0, [1], [{"items": [text]}], {}]
    found = proof.atomics_of({"kernels": {"0": named}, "steps": [given]})
    assert [why for _, _, why in found] == ["adds in assembler"] * 2


@needs_bubblewrap
def test_points_for_the_same_bits_wait_where_a_program_tells_of_an_atomic(monkeypatch):
    monkeypatch.setattr(proof, "atomics_of", lambda program: [("cell 0", 3, "adds by atomic_add")])
    assert judged(RIGHT).points == 5
    verdict = judged(RIGHT, replace(AXPY, deterministic=True))
    assert (verdict.points, verdict.held) == (0, 5) and "adds by atomic_add" in verdict.note


@needs_bubblewrap
@pytest.mark.parametrize(
    ("made", "held"),
    [("", False), ("x.new_empty(len(x))", True), ("x.clone()", True), ("x.expand(1, -1).contiguous()", False)],
)
def test_a_person_looks_at_memory_that_holds_as_much_as_may_not_be_held(made, held):
    text = f"{HEAD}{RIGHT}\n_axpy = axpy\ndef axpy(a, x, y, out):\n    {made}\n    _axpy(a, x, y, out)\n"
    verdict = judged(text, replace(AXPY, scratch=lambda v: max(v["x"].numel(), 1)))
    assert (verdict.points, verdict.held) == ((0, 5) if held else (5, 0)), verdict.note
    assert ("numbers beside its arguments" in verdict.note) == held


def test_a_check_tells_of_such_memory_before_grading_does():
    one, entry = exercise.get("flash.forward"), find("flash.forward/cheats/scores_in_memory")
    verdict = examine(one, bank.load(entry).flash_forward, 3, only="causal, more queries than keys")
    assert all(case.right for case in verdict.cases) and verdict.points == 0
    assert verdict.note.endswith("hold what should never be in memory. Grading asks a person.")


@pytest.mark.parametrize(
    ("operator", "shapes", "many"),
    [
        (torch.mm, [(2, 3), (3, 5)], 30),
        (torch.addmm, [(5,), (2, 3), (3, 5)], 30),
        (torch.bmm, [(7, 2, 3), (7, 3, 5)], 210),
        (torch.baddbmm, [(7, 2, 5), (7, 2, 3), (7, 3, 5)], 210),
        (torch.mv, [(2, 3), (3,)], 6),
        (torch.addmv, [(2,), (2, 3), (3,)], 6),
        (torch.add, [(2, 3), (2, 3)], 0),
    ],
)
def test_multiplications_of_a_product_are_counted(operator, shapes, many):
    beside = Counter()
    recording.counting(lambda *given: operator(*given), Counter(), beside)(*(torch.ones(shape) for shape in shapes))
    assert beside["multiplied"] == many
    overload = getattr(torch.ops.aten, operator.__name__).out
    given, out = [torch.ones(shape) for shape in shapes], operator(*(torch.ones(shape) for shape in shapes))
    assert multiplications(overload, given, {"out": out}, out) == many


def test_a_check_tells_of_products_that_are_for_kernels_before_grading_does():
    one, entry = exercise.get("capstone.speed"), find("capstone.speed/cheats/scores_of_the_library")
    verdict = examine(one, bank.load(entry).block_step, 3, only="one head, one image")
    assert all(case.right for case in verdict.cases) and verdict.points == 0
    assert verdict.note.endswith("the others are for kernels. Grading asks a person.")


@pytest.mark.parametrize("name", ["flash.forward", "flash.backward"])
def test_some_case_of_attention_has_more_scores_than_an_answer_copies(name):
    one = exercise.get(name)
    for seed in range(20):
        calls = [one.draw(case, seed, "cpu", "interpreter") for case in one.cases if "interpreter" in case.tiers]
        shown = [call.args for call in calls if one.scratch(call.args) < float("inf")]
        assert shown and all(one.scratch(v) > 1.3 * 4 * v["q"].numel() for v in shown if v["q"].shape == v["k"].shape)


def test_memory_that_was_set_to_zero_beforehand_is_no_table():
    table = torch.zeros(10_000, device=DEVICE)
    _, program = program_of(lambda x: x.copy_(table[:2]), torch.zeros(2, device=DEVICE))
    assert program["constants"] and proof.of_tables([program]) == ""
    assert "99 bytes" in proof.of_tables([BARE | {"constants": {"1": "x" * 99}}])  # which is no base64


def test_a_number_of_a_class_of_its_own_is_written_down_as_the_number():
    class Way(enum.IntEnum):
        SUM = 3

    assert [recording.Recorder()._value(one) for one in (Way.SUM, np.float64(0.5), True)] == [3, 0.5, True]


@needs_bubblewrap
@pytest.mark.parametrize("told", ["values", pytest.param("zeros", marks=pytest.mark.slow)])
def test_kernels_that_read_a_table_are_held_when_right_and_earn_nothing_when_the_table_told_the_answer(told):
    """A table of zeros of both signs changes nothing; one of values holds what the host computed of noise."""
    source = (
        RIGHT.replace("def axpy(", "def _axpy(")
        + """
import torch
from course_lib.numerics import np
@triton.jit
def _add(out, table, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = offs < n
    tl.store(out + offs, tl.load(out + offs, mask=here) + tl.load(table + offs, mask=here), mask=here)
def axpy(a, x, y, out):
    _axpy(NUMBER, x, y, out)
    values = x.float().cpu().numpy()
    table = torch.from_numpy(TABLE).to(x.device)
    _add[(triton.cdiv(len(x), 256),)](out, table, len(x), BLOCK=256)
"""
    )
    number, table = {
        "values": ("0.0", "a * values"),
        "zeros": ("a", "np.where(np.arange(len(values)) % 2, 0.0, -0.0).astype(values.dtype)"),
    }[told]
    verdict = judged(source.replace("NUMBER", number).replace("TABLE", table))
    assert verdict.points == 0 and verdict.held == (AXPY.points if told == "zeros" else 0), verdict.note
    assert "tables" in verdict.note or told == "values"


@needs_bubblewrap
@pytest.mark.parametrize(
    ("answer", "held"),
    [("_axpy(a, x, y, out)", AXPY.points), pytest.param("by_numpy(a, x, y, out)", 0.0, marks=pytest.mark.slow)],
)
def test_one_case_without_a_form_sends_to_a_person_only_what_is_right_in_the_others(answer, held):
    source = f"""
import numpy as np
TABLE = torch.from_numpy(np.ones(1 << 21, np.float32))
@triton.jit
def _look(table_ptr):
    tl.load(table_ptr)
def by_numpy(a, x, y, out):
    out.copy_(torch.from_numpy(a * x.cpu().numpy() + y.cpu().numpy()))
def axpy(a, x, y, out):
    if len(x) > 2000:
        _look[(1,)](TABLE.to(x.device))
    {answer}
"""
    right = RIGHT.replace("def axpy(", "def _axpy(").replace("import triton\n", "import torch\nimport triton\n", 1)
    verdict = judged(right + source, patience=Patience())
    assert (verdict.points, verdict.held) == (0.0, held), verdict.note
    assert "4 MiB" in verdict.note or any("4 MiB" in case.why for case in verdict.cases)


def test_a_memory_that_is_gone_is_told_and_its_number_is_not_used_again():
    recorder = recording.Recorder()
    slab = torch.zeros(16, dtype=torch.uint8, device=DEVICE)
    kept = []
    _, first = recorder.record(lambda: kept.append(torch.zeros(4, device=DEVICE)), (), [slab])
    _, second = recorder.record(lambda: [kept[0].clone(), kept[0].clone()] and None, (), [slab])
    made = [step[4][0] for step in first["steps"] + second["steps"]]
    assert len(set(made)) == 3 and set(made[1:]) <= set(second["gone"]) and made[0] not in second["gone"]


HELPER = '''
import triton, math
import triton.language as tl
TWO: tl.constexpr = tl.constexpr(2)
@triton.jit
def twice(x):
    return x * TWO
@triton.autotune(configs=[], key=[])
@triton.jit
def kernel(out, x, n, BLOCK: tl.constexpr = 8):
    """def not_this(): pass"""
    offs = tl.arange(0, BLOCK)
    tl.store(out + offs, twice(tl.load(x + offs, mask=offs < n)), mask=offs < n)
'''


def test_the_compiler_is_shown_the_text_that_ran():
    """Lines that one counts and another does not lead from a function to the text of another one."""
    kernel = "@triton.jit\ndef k(x_ptr):\n    tl.store(x_ptr, {})\n"
    text = kernels.Text({"a": "# \u2028\n" * 3 + kernel.format("1.0") + kernel.format("2.0")})
    text.tell({0: told("k", 7, tl={"module": "triton.language"})}, lambda v: v)
    x = torch.zeros(1, device=DEVICE)
    signatures.clear()
    with calling.counted_launches():
        text.kernel(0)[(1,)](x)
    assert x.item() == 2.0
    assert TIER == "gpu" or ["2.0" in inspect.getsource(function) for function, _, _ in signatures.values()] == [True]


def told(name, line, **names):
    return {"cell": "a", "line": line, "name": name, "names": names}


def test_a_kernel_is_made_of_the_text_with_what_its_names_stand_for():
    text = kernels.Text({"a": HELPER})
    tl = {"module": "triton.language"}
    value = {"constexpr": 2}
    names = {0: told("kernel", 8, tl=tl, twice={"kernel": 1}), 1: told("twice", 5, TWO={"value": value})}
    text.tell(names, lambda v: triton.language.constexpr(v["constexpr"]))  # as playing.py does
    x = torch.arange(5.0, device=DEVICE)
    out = torch.zeros(5, device=DEVICE)
    text.kernel(0)[(1,)](out, x, 5)
    assert torch.equal(out, 2 * x)
    assert "__import__" not in text.kernel(0).fn.__globals__["__builtins__"]


def test_a_kernel_may_walk_over_a_tuple_in_a_list():
    source = "def k(out):\n    a, b = [tl.exp2(x) * 2.0 for x in (1.0 + 0 * tl.load(out), tl.load(out + 1))]\n"
    text = kernels.Text({"a": source + "    tl.store(out, a + b)\n"})
    text.tell({0: told("k", 1, tl={"module": "triton.language"})}, None)
    out = torch.tensor([5.0, 3.0], device=DEVICE)
    text.kernel(0)[(1,)](out)
    assert out[0].item() == 2 * 2 + 2 * 8


PYTHONS_NAMES = """
import runpy, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

Text = runpy.run_path(sys.argv[1])["Text"]  # alone: the course decides for the interpreter here

text = Text({"a": '''
@triton.jit
def kernel(out, n, PARTS: tl.constexpr):
    acc = n * float(2)
    for k in range(min(n, 7), max(n, 9)):
        acc += int(3) * k + len((k, PARTS))
    tl.store(out, acc)
'''})
text.tell({0: {"cell": "a", "line": 2, "name": "kernel", "names": {"tl": {"module": "triton.language"}}}}, None)
types = {"out": "*fp32", "n": "i32", "PARTS": "constexpr"}
triton.compile(ASTSource(text.kernel(0), types, {(2,): 4}), target=GPUTarget("cuda", 90, 32))
"""


def test_the_compiler_takes_a_kernel_of_the_text_that_uses_pythons_names():
    command = [sys.executable, "-c", PYTHONS_NAMES, kernels.__file__]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


LIBDEVICE = """
import runpy, sys, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

source = "def k(out):\\n    tl.store(out, libdevice.tanh(rint(tl.load(out))))\\n"
text = runpy.run_path(sys.argv[1])["Text"]({"a": source})
names = {"tl": {"module": "triton.language"}, "libdevice": {"module": "triton.language.extra.libdevice"}}
names["rint"] = {"from": "triton.language.extra.libdevice", "object": "rint"}
text.tell({0: {"cell": "a", "line": 1, "name": "k", "names": names}}, None)
made = triton.compile(ASTSource(text.kernel(0), {"out": "*fp32"}, {}), target=GPUTarget("cuda", 90, 32))
assert "tanh" in made.asm["ttir"], made.asm["ttir"]
"""


def test_libdevice_is_a_part_of_the_language():
    command = [sys.executable, "-c", LIBDEVICE, kernels.__file__]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "0"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (told("elsewhere", 5), "not defined by the text"),
        (told("twice", 9), "not defined by the text"),
        (told("twice", 5) | {"cell": "b"}, "no cell"),
        (told("twice", 5, TWO={"module": "os"}), "module `os`"),
        (told("twice", 5, TWO={"from": "triton.runtime.jit", "object": "JITFunction"}), "module `triton.runtime.jit`"),
        (told("twice", 5, TWO={"from": "triton.language.core", "object": "builtin"}), "no part of Triton's language"),
        (told("twice", 5, TWO=None), "nothing that a kernel can use"),
        (told("twice", 5, TWO={"kernel": 0}), "calls itself"),
    ],
)
def test_what_is_no_kernel_of_the_text_is_refused_with_the_reason(number, why):
    text = kernels.Text({"a": HELPER})
    text.tell({0: number}, lambda v: v)
    with pytest.raises(kernels.NoKernel, match=why):
        text.kernel(0)


def test_annotations_that_a_compiler_asks_for_are_kept_and_those_for_readers_are_not():
    text = (
        "def k(x: torch.Tensor, y: tl.pointer_type(tl.float32), n: tl.int64, m: 'i32', SIZE: tl.constexpr):\n    pass\n"
    )
    made = kernels.Text({"a": text})
    made.tell({0: told("k", 1, tl={"module": "triton.language"})}, lambda v: v)
    assert set(made.kernel(0).fn.__annotations__) == {"n", "m", "SIZE"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def k(out, x):\n    tl.store(out, tl.load(x, member=tl.abs))\n", "`member` is no argument"),
        ("def k(out, _semantic):\n    tl.store(out, 0)\n", "gives `_semantic` another meaning"),
    ],
)
def test_the_arguments_that_hand_the_language_on_are_not_for_kernels(text, why):
    """Triton's interpreter calls what `member` names, with all of its own parts."""
    made = kernels.Text({"a": text})
    made.tell({0: told("k", 1, tl={"module": "triton.language"})}, lambda v: v)
    with pytest.raises(kernels.NoKernel, match=why):
        made.kernel(0)


def test_noise_has_the_layout_of_the_call_and_nothing_of_its_values():
    call = SOFTMAX.draw(SOFTMAX.cases[0], 3, "cpu", "interpreter")
    other = replay.noise(call)
    for name, value in call.args.items():
        if isinstance(value, torch.Tensor):
            got = other.args[name]
            assert (got.shape, got.stride(), got.dtype) == (value.shape, value.stride(), value.dtype)
            assert not (got == value).any()
        else:
            assert other.args[name] == value
    assert replay.noise(call, ("x",)).args["x"] is call.args["x"]
