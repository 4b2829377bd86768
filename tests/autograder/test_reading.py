"""The reading of a submission's text: silent on honest answers, and it points at the line of others."""

import subprocess
import sys
import time
from pathlib import Path

import jupytext
import pytest

from autograder.bank import entries, find
from autograder.exercise import UNITS, get, of_unit
from autograder.referee import everyday, reading
from autograder.referee.audit import entries as entries_of
from autograder.referee.audit import past_the_clock
from autograder.referee.meeting import meeting
from autograder.referee.reading import BOUND_ONLY, IMPORTS, added, replacing, suspicious
from autograder.referee.submission import Cell

# a text is read where points hang on who computed, so in lessons that ask for kernels
ASKED = {unit: [one for one in of_unit(unit) if one.asks_for_kernels] for unit in UNITS}
KERNELS = {unit for unit, asked in ASKED.items() if asked}


def unit_of(name):
    return name.partition(".")[0]


# Names operators of torch, as a selective checkpoint does. Of a notebook with it points for speed wait for a person.
NAMES_OPERATORS = "capstone.memory/right/selective"
HONEST = [
    entry
    for entry in entries(kinds=("right", "slow"))
    if unit_of(entry.exercise) in KERNELS and str(entry) != NAMES_OPERATORS
]
LESSONS = [p for p in sorted((Path(__file__).parents[2] / "solutions").glob("*/*.py")) if p.stem in KERNELS]
AXPY = find("start.axpy/right/masked").source


@pytest.mark.parametrize("entry", HONEST, ids=str)
def test_an_honest_answer_of_the_bank_gives_no_reason_to_look(entry):
    """An answer that needs no kernel is read where the kernels beside it in the notebook are judged."""
    own = get(entry.exercise)
    asked = own if own.asks_for_kernels else ASKED[unit_of(own.name)][0]
    assert suspicious((Cell("mine", entry.source),), *entries_of(asked)) == []


def test_who_names_operators_of_torch_waits_for_a_person():
    found = suspicious((Cell("mine", find(NAMES_OPERATORS).source),), *entries_of(get("capstone.speed")))
    assert ("mine", 10, "uses torch.ops.aten.addmm") in found


def test_an_operator_may_have_a_name_of_ones_own_and_none_of_torchs():
    text = 'import torch\n@torch.library.custom_op("{}::mine", mutates_args=())\ndef f(x: torch.Tensor) -> None: pass'
    assert suspicious((Cell("a", text.format("lesson09")),)) == []
    assert [why for _, _, why in suspicious((Cell("a", text.format("aten")),))] == [
        "uses torch.library", "uses torch.library.custom_op"
    ]  # fmt: skip
    named = 'import torch\nname = "aten::mm"\ntorch.library.custom_op(name, mutates_args=())\ntorch.library.impl'
    assert len(suspicious((Cell("a", named),))) == 4


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_the_solutions_of_a_lesson_give_no_reason_to_look(lesson):
    cells = []
    for cell in jupytext.read(lesson).cells:
        marks = cell.metadata.get("nbgrader", {})
        if "setup" in cell.metadata.get("tags", []):
            cells.append(Cell("setup 1", cell.source))
        elif marks.get("solution") and cell.cell_type == "code":
            cells.append(Cell(marks["grade_id"], cell.source))
    assert len(cells) > 1
    assert suspicious(tuple(cells), *entries_of(of_unit(lesson.stem)[0])) == []


def test_what_tells_a_watched_call_from_a_timed_one_is_read_where_no_kernel_is_asked_for():
    graph = get("roofline.graph")
    lesson = next(path for path in LESSONS if path.stem == "roofline")
    solved = [cell for cell in jupytext.read(lesson).cells if cell.metadata.get("nbgrader", {}).get("solution")]
    honest = [Cell(cell.metadata["nbgrader"]["grade_id"], cell.source) for cell in solved if cell.cell_type == "code"]
    assert past_the_clock(tuple(honest), graph) == ""
    for entry in entries(["roofline.graph"], ["right", "slow"]):
        assert past_the_clock((Cell("mine", entry.source),), graph) == ""
    for line in ("torch.autograd.profiler._is_profiler_enabled", "torch._C._autograd", "HELD.append(torch)"):
        assert "In the text: mine, line 2: " in past_the_clock((Cell("mine", f"import torch\n{line}"),), graph)


HOST = """
import torch, triton
@triton.jit
def kernel(x): pass
class Mine:
    def norm(self): pass
def run(q, k, v, out):
    kernel[(1,)](q)
    {}
"""


@pytest.mark.parametrize(
    "line", ["torch.cuda.torch.nn.functional.softmax(q, -1)", "torch.autograd.torch.matmul(q, v)", "q @= v",
    "out.copy_(q.softmax(-1))", "out.addmm_(q, k)", "out.add_(q)", "f = q.matmul", "torch.Tensor.addmm_(out, q, k)",
    "torch.Tensor.torch.softmax(q, 0)", "q.T.contiguous().mm(k)", "torch.cuda.Event()", "torch.cuda.synchronize()",
    "torch.cuda.current_stream()", "torch.cuda.default_stream()", "MARK.query()", "q.storage_offset()",
    "torch.cuda.memory_allocated()", "torch.cuda.mem_get_info()", "torch.autograd.graph"],
)  # fmt: skip
def test_what_computes_beside_a_kernel_or_tells_one_call_from_another_is_pointed_at(line):
    found = suspicious((Cell("mine", HOST.format(line)),), frozenset({"run"}))
    assert found and {(cell, at) for cell, at, _ in found} == {("mine", 9)}


@pytest.mark.parametrize(
    "line", ["x = q.to(k.dtype).contiguous().view(-1).mT", "out.copy_(q.flatten().expand(3, -1)).zero_()",
    "with torch.cuda.device(q.device): pass", "torch.cuda.get_device_properties(0).multi_processor_count",
    "names = set(); names.add(1); [2].sort(); 'a'.split()", "torch.autograd.grad(out, [q])",
    "q.numel() and q.stride()"],
)  # fmt: skip
def test_what_an_honest_caller_of_a_kernel_writes_is_not(line):
    assert suspicious((Cell("mine", HOST.format(line)),), frozenset({"run"})) == []


LOOKS_UP = [
    "from functools import singledispatchmethod\n",
    "import functools\nfunctools.singledispatchmethod\n",
    "def f(x: 'keep(torch._dyn' + 'amo)'): pass",
    "def f(x) -> f'keep({NAME})': pass",
    "def f(x: 'keep(1)'): pass",
    "x: keep('tor' + 'ch') = 1",
    "match x:\n    case Look(y): pass",
    "match x:\n    case a.Look(y): pass",
    "class int: pass\nmatch x:\n    case int(y): pass",
    "class Look:\n    __match_args__ = ('x',)",
    "class Every(type):\n    __instancecheck__ = lambda cls, x: True",
]


@pytest.mark.parametrize("text", LOOKS_UP)
def test_what_looks_up_a_name_that_the_text_does_not_hold_is_pointed_at_by_every_reading(text):
    cells = (Cell("mine", text),)
    assert suspicious(cells) and replacing(cells) and meeting(cells)


@pytest.mark.parametrize(
    "text", ["match x:\n    case int(y) | [str(y)]: pass", "def f(x: int | None, y: 'list[int]') -> 'a.b | None': pass",
    "__all__ = ['f']", "class A:\n    __slots__ = ('x',)\n    x: dict[str, int]", "match x:\n    case A(): pass"],
)  # fmt: skip
def test_ordinary_patterns_and_annotations_are_no_reason_to_look(text):
    cells = (Cell("mine", text),)
    assert not suspicious(cells) and not replacing(cells) and not meeting(cells)


@pytest.mark.parametrize("asked", [one for asked in ASKED.values() for one in asked], ids=lambda one: one.name)
def test_right_answers_in_one_notebook_give_no_reason_to_look(asked):
    """Some of them may use what the caller of a kernel may not."""
    beside = [entry for entry in HONEST if entry.kind == "right" and unit_of(entry.exercise) == unit_of(asked.name)]
    right = {entry.exercise: entry for entry in beside}
    cells = tuple(Cell(str(entry), entry.source) for entry in right.values())
    assert suspicious(cells, *entries_of(asked)) == []


ANYWHERE = {
    "import numpy as np\nnp.load('x', allow_pickle=True)": "numpy.load",
    "from numpy.testing import runstring": "numpy.testing.runstring",
    "import pandas as pd\npd.read_pickle('x')": "pandas.read_pickle",
    "from course_lib.torch_inside.reuse import fresh": "course_lib.torch_inside.reuse",
    "import torch\ntorch.from_file('x', True, 3)": "from_file",
    "import ctypes": "ctypes",
    "import os\nos.getcwd()": "os",
    "import os\nTABLE = {'os': 1}": "os",
    "import os, gc": "gc",
    "import os as __builtins__": "os",
    "from os import *": "os",
    "from . import os": "os",
    "from os import path\ndef f(): return path": "os",
    "import sys as s\ns": "sys",
    "import subprocess, math\nsubprocess.run('x')": "subprocess",
    "import gc": "gc",
    "import inspect\ninspect.getsource(f)": "inspect",
    "import _thread": "_thread",
    "import threading": "threading",
    "import concurrent.futures": "concurrent",
    "import multiprocessing": "multiprocessing",
    "import torch.multiprocessing": "torch.multiprocessing",
    "import mmap": "mmap",
    "import signal": "signal",
    "import importlib": "importlib",
    "import builtins": "builtins",
    "import IPython": "IPython",
    "import flash_attn": "flash_attn",
    "from course_lib.kernels import softmax": "course_lib.kernels",
    "from course_lib import kernels": "course_lib.kernels",
    "from autograder.referee import referee": "autograder.referee",
    "from torch.utils.cpp_extension import load_inline": "torch.utils",
    "import torch\ntorch.utils.cpp_extension.load_inline('a', '')": "torch.utils",
    "import torch\nf = torch.compile(abs)": "torch.compile",
    "import torch\ntorch.ops.aten.add(1, 2)": "torch.ops",
    "from torch import ops": "torch.ops",
    "import torch\ntorch._softmax": "private",
    "import torch\ntorch.allclose = print": "replaces torch.allclose",
    "import time\ntime.perf_counter, x = print, 1": "replaces time.perf_counter",
    "import torch\ndel torch.cuda.synchronize": "replaces torch.cuda.synchronize",
    "import torch as t\nt.cuda.synchronize = abs": "replaces torch.cuda.synchronize",
    "import triton\ndef triton(): pass": "replaces triton",
    "class T(torch.Tensor): pass\nimport torch": "torch.Tensor",
    "class T:\n    def __eq__(self, other): return True": "__eq__",
    "().__class__.__bases__": "__bases__",
    "exec('1')": "exec",
    "__import__('os')": "__import__",
    "open('/tmp/x')": "open",
    "def f():\n    try: pass\n    except Exception as e: e.__traceback__.tb_frame": "tb_frame",
    "x = '/proc/self/maps'": "/proc",
    "setattr(print, 'a', 1)": "setattr",
    "from . import secrets": "secrets",
    "import warnings\nwarnings.sys.path": "warnings.sys",
    "from warnings import sys": "warnings.sys",
    "import torch\nx = torch.hub": "torch.hub",
    "def f(x): return x.sys.modules": ".modules",
    "import math\nmatch math:\n    case object(sys=found): pass": "pattern",
    "'{0.hub.sys}'.format(1)": "look something up",
    "x = '__builtins__'": "__builtins__",
    "def f(x): x.call = print": "sets or deletes .call",
    "def f(x): x._Recording": "a private part",
    "import typing\ntyping.get_type_hints(print)": "get_type_hints",
    "@triton.jit\ndef k(x):\n    x.handle": "in a kernel",
}


@pytest.mark.parametrize("source", ANYWHERE)
def test_what_no_lesson_needs_is_pointed_at(source):
    found = suspicious((Cell("mine", source),))
    assert any(ANYWHERE[source] in why for _, _, why in found), found
    assert all(cell == "mine" and 1 <= line <= 3 for cell, line, _ in found)


BESIDE = {
    "torch does the work": ("", "    out.copy_(torch.add(x, y))", "torch.add"),
    "torch does the work under another name": ("import torch.nn.functional as F", "    F.softmax(x, 0)", "torch.nn"),
    "numpy does the work": ("import numpy as np", "    np.add(x, y)", "numpy"),
    "numbers leave the tensor": ("", "    x.tolist()", ".tolist"),
    "by matrices": ("", "    x @ y", "multiplies matrices"),
    "where the kernel fails": ("", "    try: pass\n    except Exception: pass", "catches exceptions"),
    "one call told from another": ("import time", "    time.time()", "time.time"),
    "by a name made up": ("", "    globals()['he' + 'lper']()", "globals"),
    "a graph is replayed": ("", "    torch.cuda.CUDAGraph()", "CUDAGraph"),
    "in a function that it calls": ("def helper(x, y): return torch.add(x, y)", "    helper(x, y)", "torch.add"),
    "in a lambda": ("helper = lambda x, y: torch.add(x, y)", "    helper(x, y)", "torch.add"),
    "in the kernel": ("", "", "torch.add"),
    "in a function under a condition": ("if 1:\n  def helper(x, y): torch.add(x, y)", "    helper(x, y)", "torch.add"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_could_do_the_work_of_a_kernel_is_pointed_at(name):
    before, line, why = BESIDE[name]
    axpy = AXPY.replace("mask = offs < n", "helper(x_ptr, y_ptr)") if name == "in the kernel" else AXPY
    before = before or "def helper(x, y): return torch.add(x, y)"
    cells = (Cell("setup 1", "import torch"), Cell("other", before), Cell("mine", axpy + line))
    assert any(why in one for _, _, one in suspicious(cells)), suspicious(cells)


@pytest.mark.parametrize(
    "entry", ["def axpy(*a):\n    inner(*a)\n    torch.add(*a[1:3])", "axpy = lambda *a: [inner(*a), torch.add(1, 2)]"]
)
def test_the_caller_of_a_kernel_s_caller_is_read_too(entry):
    cells = (Cell("setup 1", "import torch"), Cell("mine", AXPY.replace("def axpy", "def inner")), Cell("more", entry))
    assert [(cell, why) for cell, _, why in suspicious(cells)] == [("more", "uses torch.add beside a kernel")]


LAYER = "def layer(x, y):\n    axpy(1.0, x, y, y)\n    return torch.nn.functional.relu(y) @ y\n"


LAUNDERED = [find(f"roofline.softmax/cheats/{name}") for name in (
    "computed_by_numpy",
    "computed_through_a_list",
    "computed_under_a_decorator_called_jit",
    "computed_by_a_module_that_the_course_imports",
    "computed_by_torch_in_a_thread",
)]  # fmt: skip


@pytest.mark.parametrize("entry", LAUNDERED, ids=str)
def test_what_computes_is_found_however_its_name_was_bound(entry):
    assert suspicious((Cell("mine", entry.source),), *entries_of(get(entry.exercise)))


@pytest.mark.parametrize(
    "line", ["jit = staticmethod", "def jit(f): return f", "class jit: pass", "for jit in [f]: pass", "tr = f"]
)
def test_another_meaning_of_the_name_of_triton_s_jit_is_pointed_at(line):
    source = (
        f"from triton import jit\nimport triton as tr\n{line}\n@jit\ndef kernel(x): pass\n@tr.jit\ndef other(x): pass"
    )
    assert any("another meaning" in why for _, _, why in suspicious((Cell("mine", source),)))


def test_a_long_chain_of_attributes_is_pointed_at_and_soon_read():
    began = time.process_time()
    found = suspicious((Cell("mine", "x = torch" + ".a" * 250),))
    assert any("attributes in a row" in why for _, _, why in found)
    assert time.process_time() - began < 5


LEADS = "import triton\n@triton.jit\ndef k(x): pass\ndef f0(): k\n"
COSTLY = {
    "functions that lead to one another": LEADS + "".join(f"def f{n}(): f{n - 1}\n" for n in range(1, 800)),
    "other names for jit": "import triton\n" + "\n".join(f"f{n} = f{n + 1}" for n in range(6000)) + " = triton.jit",
    "statements in statements": LEADS + "".join(" " * n + "if 1:\n" for n in range(95)) + " " * 95 + "a = 1;" * 4000,
    "names of a module": f"from course_lib.kernels.rope import {','.join(f'f{n}' for n in range(1000))}",
    "a name of many pieces": f"getattr(f, f'{'{a}' * 20}!')",
    "a module with a long name": f"import course_lib.{'a' * 300} as f",
}


@pytest.mark.parametrize("text", COSTLY.values(), ids=COSTLY)
def test_no_text_takes_the_referee_long_to_read(text):
    """It reads outside of any sandbox, and everybody's next verdict waits for it."""
    cells, began = (Cell("mine", text),), time.process_time()
    for read in (lambda cells: suspicious(cells, frozenset({"f0"})), replacing, meeting):
        read(cells)
    assert time.process_time() - began < 8


def test_what_only_a_free_function_leads_to_may_use_kernels_and_torch():
    cells = [Cell("setup 1", "import torch"), Cell("mine", AXPY), Cell("more", LAYER + "def swap(m): return layer")]
    assert (
        suspicious((*cells, Cell("try", "def t(m): return swap(m) @ m")), frozenset({"axpy"}), frozenset({"swap"}))
        == []
    )
    assert {line for _, line, _ in suspicious(tuple(cells))} == {3}
    cells[1] = Cell("mine", AXPY.replace("def axpy(a, x, y, out):", "def axpy(a, x, y, out):\n    layer(x, y)"))
    found = suspicious(tuple(cells), frozenset({"axpy"}), frozenset({"swap"}))
    assert {(cell, line) for cell, line, _ in found} == {("more", 3)}, "the judged one leads there too"


def test_modules_of_a_model_are_walked_over_and_those_of_python_are_not():
    assert suspicious((Cell("mine", "def f(m): return [*m.modules()]"),)) == []
    assert [why for *_, why in suspicious((Cell("mine", "def f(m): return m.modules['os']"),))] == ["uses .modules"]


@pytest.mark.parametrize("other", ["import math as torch", "from torch import backends as torch"])
@pytest.mark.parametrize("where", ["if False: {}", "def never():\n    {}", "try: pass\nexcept: {}"])
def test_a_name_that_also_stands_for_something_else_is_read_as_both(where, other):
    text = "import torch\n" + AXPY.replace("y, out):", "y, out):\n    torch.matmul(x, y)")
    never = Cell("your cell 1", where.format(other))
    for cells in ([Cell("start_axpy", text), never], [never, Cell("start_axpy", text)]):
        said = [why for _, _, why in suspicious(tuple(cells), frozenset({"axpy"}))]
        assert "uses torch.matmul beside a kernel" in said
    many = Cell("your cell 1", "\n".join(f"import torch.a{n} as t" for n in range(5000)))
    assert [why for _, _, why in suspicious((many,))] == ["is nested too deeply to be read, or says too much at once"]


@pytest.mark.parametrize("unused", ["import os", "from pathlib import Path", "import sys as s, os", "import logging"])
def test_an_import_that_nothing_mentions_is_no_reason_to_look(unused):
    helper = Cell("your cell 1", f"import torch\n{unused}\ndef f():\n    import os, inspect")
    assert suspicious((helper, Cell("start_axpy", AXPY))) == []
    names = ["os", "Path", "s", "logging"]
    for mention in (
        "{}",
        "x = lambda {}: 1",
        "x = 'about {}'",
        "x = f'{{torch}} {}'",
        "def f(*, {}=1): pass",
        "f({}=1)",
    ):
        users = tuple(Cell(f"your cell {n}", mention.format(name)) for n, name in enumerate(names, 2))
        assert "your cell 1" in [name for name, _, _ in suspicious((helper, *users))], mention


def test_what_may_be_imported_unused_is_there_before_any_cell_runs():
    held = subprocess.run(
        [sys.executable, "-c", "import torch, sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    assert set(held.stdout.split()) >= BOUND_ONLY and not BOUND_ONLY & IMPORTS


def test_a_student_s_own_experiments_are_no_reason_to_look():
    tried = """
import time
import numpy as np
x, y, out = torch.randn(100, device=DEVICE), torch.ones(100, device=DEVICE), torch.empty(100, device=DEVICE)
axpy(2.0, x, y, out)
print(torch.allclose(out, 2 * x + y), np.mean(out.cpu().numpy()), time.time(), out.tolist())
torch.backends.cuda.matmul.allow_tf32 = True
"""
    assert (
        suspicious(
            (
                Cell("setup 1", "import torch\nfrom course_lib.device import DEVICE"),
                Cell("a", AXPY),
                Cell("your cell 1", tried),
            )
        )
        == []
    )


@pytest.mark.parametrize(
    "text",
    [
        "def linear(input, dir=1):\n    return input * dir",
        "input = torch.ones(3)\nprint(input)",
        "def f():\n    'Called by __init__ and __call__: returns {...}'",
        "torch._foreach_div_(gradients, 2)",
        "tile = tile._replace(rows=3)\nf(**tile._asdict(), names=tile._fields)\nTile._make([1, 2])",
        "q.grad, k.requires_grad = None, True",
        "from types import SimpleNamespace\nSimpleNamespace(a=1)",
    ],
)
def test_what_people_write_and_nothing_is_reached_by_is_no_reason_to_look(text):
    assert suspicious((Cell("setup 1", "import torch"), Cell("mine", text))) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def f(x):\n    def dir(): pass\ndef g(x): return dir(x)", "uses dir"),
        ("class A:\n    eval = eval", "uses eval"),
        ("import torch\ntorch._replace(1)", "uses torch._replace, a private part"),
        ("x._make_subclass(y)", "uses ._make_subclass, a private part"),
        ("x._replace = f", "uses ._replace, a private part"),
        ("x = '__init____globals__'", "a string that may look something up: __init____globals__"),
        ("x = '__init__', '__globals__'", "a string that may look something up: __globals__"),
    ],
)
def test_a_name_of_ones_own_hides_none_of_pythons(text, why):
    assert why in [said for _, _, said in suspicious((Cell("mine", text),))]


def test_attributes_that_a_text_gives_to_its_own_are_no_private_parts_among_ranks():
    text = """
import torch.distributed as dist
@dataclass
class Bucket:
    _left: int = 0
    def _begin(self): self._work = dist.all_reduce(self.buffer)
def arrives(p, bucket):
    p._bucket = bucket
    bucket._left -= 1
    bucket._begin()
    bucket._work.wait()
"""
    assert meeting((Cell("mine", text),)) == []
    others = "class A:\n    _coalescing_manager = _get_backend = 1\ndist._coalescing_manager()\ngroup._get_backend()"
    found = [why for _, _, why in meeting((Cell("mine", "import torch.distributed as dist\n" + others),))]
    assert found == [
        "uses torch.distributed._coalescing_manager, a private part", "uses ._get_backend, a private part"
    ]  # fmt: skip


TRIES = """
import numpy as np
from course_lib.timing import time_gpu
def right(n):
    x, y = torch.randn(2, n, device="cuda")
    axpy(2.0, x, y, out := torch.empty_like(x))
    return torch.allclose(out, torch.add(2 * x, y)) and out.cpu().numpy().mean() < out.max().item()
def seconds(sizes):
    found = {}
    for n in sizes:
        found[n] = time_gpu(lambda: right(n)).median
    return found, all(right(n) for n in sizes)
print(seconds([100, 200]), right(3))
"""
JUDGED = frozenset({"axpy"}), frozenset()


@pytest.mark.parametrize(
    "line", ["np.loadtxt('x')", "pd.read_csv('x')", "torch.distributed.FileStore('x', 2)", "plt.imread('x')"]
)
def test_what_brings_numbers_past_the_network_is_pointed_at_among_ranks(line):
    imports = "import torch, numpy as np, pandas as pd\nimport matplotlib.pyplot as plt\n"
    assert [found for _, found, _ in meeting((Cell("mine", imports + line),))] == [3]
    written = "plt.savefig('x.png')\nnp.save('x', a)\npd.DataFrame(a).to_csv('x')"
    assert meeting((Cell("mine", imports + written),)) == []


@pytest.mark.parametrize(
    "line",
    [
        "Wrapped = getattr(torch.nn.parallel, 'DistributedDataParallel')",
        "from torch.distributed.distributed_c10d import _get_default_store as s",
        "from torch.distributed._composable.replicate import replicate",
        "import torch.distributed.checkpoint as saved",
        "store = next(iter(dist.rendezvous('file:///tmp/x', 0, 2)))",
        "getattr(torch, 'load')('x')",
        "getattr(dist, 'all_' + name)(x)",
        "tools = [torch]",
        "t = torch\nuse(t)",
        "use(torch.nn.parallel)",
        "def f(self, dist=dist): self.dist = dist",
        "held[0].load('x')",
        "np.save('/tmp/x', a)",
        "import matplotlib.cbook as c\nc.get_sample_data('x')",
        "import pandas as pd\npd.read_stata('x')",
        "class A:\n    _C = 1\nheld._C",
        "f(**{'x': getattr()})\nheld.load('x')",
    ],
)
def test_a_name_in_a_string_and_a_private_part_that_is_imported_are_pointed_at_among_ranks(line):
    assert meeting((Cell("mine", "import torch\nimport torch.distributed as dist\n" + line),))


@pytest.mark.parametrize(
    "text",
    [
        "from datetime import datetime\nprint(datetime.now())",
        "import logging\nlogging.basicConfig(level=logging.INFO)\nlog = logging.getLogger('me')\nlog.info('begun')",
        "import os\nrank = int(os.environ.get('LOCAL_RANK', 0))\nos.environ['OMP_NUM_THREADS'] = '1'",
        "from torch.utils.data import DataLoader, TensorDataset\nb = next(iter(DataLoader(TensorDataset(x), 4)))",
        "import torch\nwith torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p: f()",
        "class Wrapped:\n    def __getattr__(self, name):\n        return getattr(self.module, name)",
        "import traceback\ntry: f()\nexcept Exception: traceback.print_exc()",
        "import torch.distributed as dist\ngather = getattr(dist, 'all_gather_into_tensor', None)",
        "import torch\ndist = torch.distributed\nready = hasattr(dist, 'all_reduce') and dist.is_initialized()",
        "import torch.nn.functional as F\nact = F.relu\nlayers = [torch.nn.Linear, F.gelu]",
        "def f(**options): return getattr(**options)",
        "model.load_state_dict(state)\ndef load(bucket): return bucket.load_factor",
    ],
)
def test_what_people_write_beside_training_is_no_reason_to_look_among_ranks(text):
    assert meeting((Cell("mine", text),)) == []


@pytest.mark.parametrize("text", ["import os\nos.environ['A'] = os.popen('date').read()", "import logging.config"])
def test_what_leads_on_from_there_is_one(text):
    assert meeting((Cell("mine", text),))


EVERYDAY = {  # and what leads further
    "import gc, torch\ngc.collect()\ntorch.cuda.empty_cache()": "import gc\ngc.collect()\ngc.get_objects()",
    "import sys\nprint(sys.version)\nsys.stdout.flush()": "import sys\nsys.stdout.buffer.raw",
    "import timeit\nprint(timeit.default_timer())": "import timeit\ntimeit.timeit('f()')",
    "import os\nn = os.cpu_count()": "import os\nos.cpu_count, os.popen",
    "from IPython.display import display\ndisplay(1)": "from IPython.display import HTML\nHTML(filename='x').data",
    "import logging\nlogging.info('x')": "import logging\nlogging.basicConfig(filename='x')",
    "import gc\nprint(gc.collect())": "import gc as g\n[g][0].get_objects()",
    "from datetime import datetime\nprint(datetime.now())": "import torch\nheld = torch.os",
    "class State:\n    def __add__(self, o): return o\n    def __hash__(self): return 1": "def __getattr__(s, n): 1",
}


@pytest.mark.parametrize("text", EVERYDAY)
def test_what_is_everyday_is_no_reason_to_look_where_a_probe_looks_on_and_what_leads_further_is(text):
    for cells, left in ((Cell("a", text),), False), ((Cell("a", EVERYDAY[text]),), True):
        assert suspicious(cells) and bool(everyday.without(suspicious(cells), cells)) == left


def test_functions_that_try_a_kernel_out_are_no_reason_to_look():
    cells = (Cell("setup 1", "import torch"), Cell("mine", AXPY), Cell("your cell 1", TRIES))
    assert suspicious(cells, *JUDGED) == []


@pytest.mark.parametrize(
    "change",
    [
        "axpy = right",  # what is judged
        "TABLE = [right]",
        "@register\ndef other(x): return right(x) and torch.add(x, x)",
        "def made(x):\n    axpy(1, x, x, x)\n    return lambda: torch.add(x, x)",
        "def made(x):\n    axpy(1, x, x, x)\n    TABLE.append(torch.add)",
        "def made(x):\n    axpy(1, x, x, x)\n    yield torch.add(x, x)",
        "def made(x):\n    axpy(1, x, x, x)\n    return (torch.add(x, x) for _ in range(9))",
        "def axpy(a, x, y, out):\n    torch.add(x, y, out=out)\n    kernel[(1,)](x)",
        "import triton\n@triton.jit\ndef other(n):\n    right(n)",
    ],
)
def test_a_function_that_may_be_called_from_elsewhere_does_not_only_try(change):
    cells = (Cell("setup 1", "import torch"), Cell("mine", AXPY), Cell("your cell 1", TRIES), Cell("more", change))
    assert "uses torch.add beside a kernel" in [why for *_, why in suspicious(cells, *JUDGED)]


@pytest.mark.parametrize(
    ("made", "used"),
    [
        ("class Own:\n    def f(self, x): return torch.add(x, x)\nmath = Own()", "math.f(x)"),
        ("def prepared(): HELD.append(torch.nn.Softmax(0))\nprepared()", "HELD[0](x)"),
        ("def prepared(): HELD.append(max((lambda x: torch.add(x, x)), key=id))\nprepared()", "HELD[0](x)"),
        ("def max(f): HELD.append(f)\ndef prepared(): max(lambda x: torch.add(x, x))\nprepared()", "HELD[0](x)"),
        (
            "class Own:\n    def keep(self, f): self.f = f\ntime_gpu = Own()\n"
            "def prepared(): time_gpu.keep(lambda x: torch.add(x, x))\nprepared()",
            "time_gpu.f(x)",
        ),
        ("def prepared(): HELD.append(torch.add(torch.ones(3), 1))\nprepared()", "out.copy_(HELD[0])"),
        ("def prepared(): axpy(torch.nn.Softmax(0), 1, 1, 1)\nprepared()", "HELD.append(a)"),
        ("def prepared(): axpy(torch.add(torch.ones(3), 1).softmax, 1, 1, 1)\nprepared()", "HELD.append(a)"),
        (
            "def prepared(time_gpu):\n    axpy(1, 1, 1, 1)\n    time_gpu(lambda x: torch.add(x, x))\n"
            "prepared(HELD.append)",
            "HELD[0](x)",
        ),
        ("def prepared(): axpy(torch, torch.add(1, 1), 1, 1)\nprepared()", "HELD.append(a)"),
    ],
)
def test_what_a_function_leaves_behind_and_a_name_bound_anew_hide_nothing(made, used):
    names = "import math\nfrom course_lib.timing import time_gpu\nHELD = []\n"
    answer = AXPY.replace("y, out):", f"y, out):\n    {used}")
    cells = Cell("setup 1", "import torch"), Cell("mine", f"{names}{made}\n{answer}")
    assert [why for *_, why in suspicious(cells, *JUDGED) if why.endswith("beside a kernel")]


def test_what_describes_a_launch_may_stand_beside_a_kernel():
    text = """
import operator, functools
import numpy as np
from triton.tools.tensor_descriptor import TensorDescriptor
x = torch.utils.checkpoint.checkpoint(torch.sin, torch.ones(3))
def axpy(a, x, y, out):
    n = functools.reduce(operator.mul, x.shape, 1) + int(np.prod(y.shape))
    count = triton.runtime.driver.active.utils.get_device_properties(0)["multiprocessor_count"]
    one, two = torch.unbind(torch.reshape(x, (2, -1)))
    kernel[(count,)](TensorDescriptor.from_tensor(one, [16]), torch.as_strided(two, (3,), (1,)), n)
"""
    cells = (Cell("setup 1", "import torch, triton"), Cell("mine", AXPY.replace("def axpy", "def other") + text))
    assert suspicious(cells, *JUDGED) == []


def test_a_cell_that_does_not_parse_is_passed_over():
    assert suspicious((Cell("a", "def f(:"), Cell("b", "import gc"))) == [("b", 1, "imports gc")]


@pytest.mark.parametrize("source", ["def f(a, a): pass", "def f():\n    nonlocal a", "def f(a):\n    global a"])
def test_a_cell_that_parses_and_that_no_python_runs_is_passed_over(source):
    assert suspicious((Cell("a", source), Cell("b", "import gc"))) == [("b", 1, "imports gc")]


@pytest.mark.parametrize("last", ["global x_", "def f():\n    nonlocal y_"])
def test_a_cell_that_some_worker_runs_is_read_though_no_table_can_be_made_of_it(last):
    """Under `annotations` of an earlier cell `global x_` compiles; or each statement by itself."""
    first, text = Cell("a", "from __future__ import annotations"), f"{PUT}y_: x_ = 1\nprobe.run = getattr(1, 'real')\n"
    run = Cell("b", text + "global x_")
    assert ("b", 3, "uses getattr") in suspicious((first, run)) and replacing((first, run))
    alone = (Cell("b", f"{PUT}x = 1\nglobal x\nprobe.run = getattr(1, 'real')"),)
    assert suspicious(alone) and replacing(alone), "by itself `global x` compiles"
    read = (first, Cell("b", text + last))
    assert bool(suspicious(read)) == bool(replacing(read)) == (last == "global x_")


@pytest.mark.parametrize("waits", ["await x", "async for i in x: pass", "async with x: pass", "[i async for i in x]"])
def test_a_cell_that_awaits_is_read_also_where_python_refuses_a_table_of_it(waits, monkeypatch):
    def refused(source, *_):
        raise SyntaxError("'await' outside function")

    monkeypatch.setattr(reading.symtable, "symtable", refused)
    assert suspicious((Cell("a", f"import gc\n{waits}"),)) != []


@pytest.mark.parametrize("read", [suspicious, replacing, meeting, lambda cells: added(cells, {"k"})])
def test_a_text_nested_beyond_reading_goes_to_a_person_and_ends_nothing(read):
    """A worker has more stack left than the referee, so such a cell may have run."""
    deep = Cell("a", "if 0:\n    x" + ".b" * 100_000)
    assert read((deep, Cell("b", AXPY))) == [("", 0, "is nested too deeply to be read, or says too much at once")]
    assert isinstance(read((Cell("a", "x = " + "-" * 3000 + "1"),)), list)
    assert read((Cell("a", "@x" + ".b" * 900 + "\ndef f(): pass"), Cell("b", AXPY))) is not None


PROBED = [e for e in entries(kinds=("right", "slow")) if get(e.exercise).probe]


@pytest.mark.parametrize("entry", PROBED, ids=str)
def test_an_honest_answer_that_a_probe_looks_at_replaces_nothing(entry):
    assert replacing((Cell("mine", entry.source),)) == []


NAMED = "names a part of the grader in a string"
PUT = "import autograder.inside.probes.towers as probe\n"
IN_A_STRING = "may run code that stands in a string"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("probe.compiled = print", "replaces autograder.inside.probes.towers.compiled"),
        ("other = probe\nother.run = print", "replaces autograder.inside.probes.towers.run"),
        ("import torch\ntorch.compile = print", "replaces torch.compile"),
        ("setattr(probe, 'run', print)", "uses setattr"),
        ("other = probe\nsetattr(other, 'run', print)", "uses setattr"),
        ("import torch\nsetattr(torch.nn.Linear, 'forward', print)", "uses setattr"),
        ("put = setattr", "uses setattr"),
        ("setattr(mine, '__code__', other)", "uses setattr"),
        ("probe.run.__globals__['run'] = print", "uses .__globals__"),
        ("import sys\nsys.modules['autograder.inside.probes.towers'] = None", "uses .modules"),
        ("other = probe\nother.run = print\nother = abc.ABC", "replaces autograder.inside.probes.towers.run"),
        ("with mine as probe.run: pass", "replaces autograder.inside.probes.towers.run"),
        ("[0 for probe.run in [print]]", "replaces autograder.inside.probes.towers.run"),
        ("a, [(b, *probe.run)] = mine", "replaces autograder.inside.probes.towers.run"),
        ("async for probe.run in mine: pass", "replaces autograder.inside.probes.towers.run"),
        ("import inspect\ninspect.signature(f, eval_str=True)", "imports inspect"),
        ("import inspect\ninspect.signature(*f)", "imports inspect"),
        ("import inspect\ninspect.signature(f).from_callable(g, eval_str=True)", "uses .from_callable"),
        ("import inspect as i\ni.signature(f)\nmine = i", "imports inspect"),
        ("import inspect\ninspect.signature(f)\nx = 'inspect'", "imports inspect"),
        ("from inspect import signature\nsignature(f)\nf(signature)", "imports inspect.signature"),
        ("from inspect import stack as signature\nsignature(1)", "imports inspect.stack"),
        ("import inspect, pickle\ninspect.signature(pickle)", "imports pickle"),
        ("import inspect, os\ninspect.getmembers(f)", "imports inspect"),
        ("def f():\n    try: pass\n    finally:\n        import os, ctypes", "imports ctypes"),
        ("from inspect import signature\nfrom pickle import loads as signature\nsignature(f)", "imports pickle.loads"),
        ("import pickle\npickle.loads(f)", "imports pickle"),
        ("from unittest import mock", "imports unittest.mock"),
        ("import unittest\nunittest.mock.patch", "imports unittest"),
        ("import unittest\nunittest.main('probes', exit=False).module.run = print", "imports unittest"),
        ("import unittest\nunittest.main(module='probes', exit=False)", "imports unittest"),
        ("import unittest\nunittest.main(**mine)", "imports unittest"),
        ("from unittest import TestCase\nTestCase.run = print", "replaces unittest.TestCase.run"),
        ("from unittest import main\nmain('probes', exit=False).module.run = print", "imports unittest.main"),
        ("import importlib.metadata\nimportlib.import_module(name)", "imports importlib.metadata"),
        (
            "from importlib.metadata import EntryPoint\nEntryPoint(a, b, c).load()",
            "imports importlib.metadata.EntryPoint",
        ),
        ("import inspect\ninspect.getmembers(f)", "imports inspect"),
        ("import inspect\ninspect.getmro(inspect)", "imports inspect"),
        ("import unittest\nf(unittest)\nclass A(unittest.TestCase): pass", "imports unittest"),
        ("import unittest\nunittest.TestCase = print", "imports unittest"),
        ("import unittest as tests\ntests.main(exit=False)", "imports unittest"),
        ("[probe][0].run = print", "uses autograder.inside.probes.towers"),
        ("import autograder\nf(autograder.inside.probes)", "uses autograder.inside.probes"),
        ("from sys import modules\nf(modules)", "imports sys.modules"),
        ("import pkgutil", "imports pkgutil"),
        ("import gc\ngc.get_referents(f)", "uses .get_referents"),
        ("import operator\noperator.attrgetter('f.__globals__')", "looks up what leads to other code"),
        ("getattr(f, '__glo' + name)", "looks up what leads to other code"),
        ("getattr(f, name + 'frame')", "looks up what leads to other code"),
        ("getattr(f, '__%s__' % name)", "looks up what leads to other code"),
        ("getattr(f, f'{name}lobals{name}')", "looks up what leads to other code"),
        (
            "import autograder\ngetattr(getattr(autograder, 'inside'), 'probes').towers.run = print",
            "hands autograder on",
        ),
        ("import os\nos.environ = {}", "replaces os.environ"),
        ("globals().get('probe').run = print", "uses globals"),
        ("globals().get(name).run = print", "uses globals"),
        ("globals().get('__buil' + 'tins__')", "uses globals"),
        ("globals()['abc'] = 3", "uses globals"),
        ("held = globals()", "uses globals"),
        (
            "import torch._inductor.config as c\nc.torch.compile = print",
            "replaces torch._inductor.config.torch.compile",
        ),
        ("import torch\ntorch._dynamo.config.sys.path = []", "replaces torch._dynamo.config.sys.path"),
        (
            "import torch\ntorch._dynamo.config.__class__.__getattr__ = f",
            "replaces torch._dynamo.config.__class__.__getattr__",
        ),
        ("import timeit\ntimeit.timeit('import autograder.inside.probes as p; p.run = f')", IN_A_STRING),
        ("import timeit, torch\ntimeit.timeit('torch.compile = f', globals={'torch': torch})", IN_A_STRING),
        ("'''>>> from autograder.inside.probes import towers'''\nimport doctest\ndoctest.testmod()", NAMED),
        ("import io\ntorch.load(io.BytesIO(b'cautograder.inside.probes.towers\\nmake'), weights_only=False)", NAMED),
        ("logging.config.DictConfigurator({}).resolve('autograder.inside.probes.towers')", NAMED),
        ("with open('mine.py', 'w') as file:\n    file.write(\n'  import importlib\\n  f()')", IN_A_STRING),
        ("import types\ntypes.FunctionType(compile(text, '', 'exec'), {})()", IN_A_STRING),
        (
            "import string\nstring.Formatter().get_field('0.__globals__[a]', (f,), {})",
            "looks up what leads to other code",
        ),
        ("import sys\nsys.setprofile(look)", "uses .setprofile"),
        ("from threading import settrace", "imports threading.settrace"),
    ],
)
def test_what_replaces_a_probe_is_found(text, why):
    assert why in [said for _, _, said in replacing((Cell("mine", f"import abc\n{PUT}{text}"),))]


def test_a_probe_that_is_imported_below_what_replaces_it_is_found():
    cells = Cell("first", "def put():\n    other = probe\n    other.run = print"), Cell("then", f"{PUT}put()")
    assert ("first", 3, "replaces autograder.inside.probes.towers.run") in replacing(cells)


@pytest.mark.parametrize(
    "text",
    [
        "import pickle, sys",
        "import os, inspect, unittest\nprint(os.getcwd(), inspect.getsource(f))\nclass T(unittest.TestCase): pass",
        "import inspect\ninspect.getsource(f)",
        "import inspect as i\nprint(i.getsource(f), i.signature(f).parameters)",
        "from inspect import getsource, signature\nsignature(f); getsource(f)",
        "import inspect\nprint(inspect.getdoc(f), inspect.getmro(C), inspect.getsourcelines(f)[0], inspect.isclass(C))",
        "from importlib.metadata import version\nprint(version('torch'))",
        "from unittest import TestCase\nclass T(TestCase): pass",
        "import pandas as pd\npd.options.display.width = 100",
        "import sys\nIN_COLAB = 'google.colab' in sys.modules",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self): pass\nunittest.main(argv=[''], exit=False)",
    ],
)
def test_a_question_about_a_function_replaces_nothing(text):
    assert replacing((Cell("setup 1", "import torch"), Cell("mine", text))) == []


def test_settings_of_the_compiler_and_modules_of_a_model_are_no_replacements():
    text = "import torch\ntorch._dynamo.config.verbose = True\n[type(m) for m in model.modules()]\nx.scale = 2\n"
    assert replacing((Cell("mine", text),)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import os\nos.environ['TORCHINDUCTOR_CACHE_DIR'] = '/tmp/mine'",
        "import torch._functorch.config\ntorch._functorch.config.enable_autograd_cache = False",
        "count = globals().get('count') or 3",
        "if 'count' not in globals():\n    count = 3\nprint(globals()['count'])",
        "import torch\ngetattr(torch.backends.cuda.matmul, f'allow_{name}_reduced_precision_reduction')",
        "import autograder\nautograder.check('start.axpy', axpy)",
        "import torch._inductor.config\ntorch._inductor.config.triton.cudagraphs = True",
        "import timeit\ntimeit.timeit('f(x)', setup='import torch; x = torch.ones(3)', globals={'f': f})",
        "def f(x, mode='eval', what='inspect'):\n    'Import this, (and) = that.'\n    return compile(x)",
    ],
)
def test_what_a_lesson_writes_in_its_own_cells_replaces_nothing(text):
    assert replacing((Cell("mine", text),)) == []


@pytest.mark.parametrize("unit", [unit for unit in UNITS if any(one.probe for one in of_unit(unit))])
def test_who_copies_the_cells_of_a_lesson_waits_for_nobody_where_a_probe_looks_on(unit):
    lesson = jupytext.read(next((Path(__file__).parents[2] / "solutions").glob(f"*/{unit}.py")))
    code = [cell for cell in lesson.cells if cell.cell_type == "code" and "nbgrader" not in cell.metadata]
    setup = [cell.source for cell in code if "setup" in cell.metadata.get("tags", [])]
    shown = [cell.source for cell in code if "setup" not in cell.metadata.get("tags", [])]
    assert setup and shown
    cells = [Cell(f"setup {n}", text) for n, text in enumerate(setup)]
    cells += [Cell(f"your cell {n}", text) for n, text in enumerate(shown)]
    assert replacing(tuple(cells)) == []


def test_a_layer_that_is_swapped_by_its_name_is_no_replacement():
    text = "import torch\nsetattr(model.get_submodule(parent), last, torch.nn.Linear(2, 3))\nsetattr(self, name, 1)\n"
    assert replacing((Cell("mine", text),)) == []


ADDS = """
import triton
import triton.language as tl
@triton.jit
def _spread(ptr, x):
    tl.atomic_add(ptr, x)
@triton.jit
def _first(ptr, x):
    _spread(ptr, x)
@triton.jit
def _second(ptr, x):
    tl.store(ptr, x)
"""


def test_sums_in_whatever_order_are_found_in_the_kernels_that_ran_and_in_what_they_call():
    cells = (Cell("mine", ADDS),)
    assert added(cells, {"_first"}) == added(cells, {"_spread"}) == [("mine", 6, "adds by atomic_add")]
    assert added(cells, {"_second"}) == added((Cell("a", "def f(:"),), {"f"}) == []


def test_a_kernel_that_adds_in_assembler_is_found():
    asm = "tl.inline_asm_elementwise('red.global.add.f32 [$1], $2;', '=r,l,f', [ptr, x], tl.int32, False, 1)"
    assert added((Cell("mine", ADDS.replace("tl.atomic_add(ptr, x)", asm)),), {"_first"}) == [
        ("mine", 6, "adds in assembler")
    ]


@pytest.mark.parametrize(
    "line", ["asm('re' + 'd.x', x)", "asm(HEAD + TAIL, x)", "y = 'a' + x", "one = A + B; asm(asm=one)"]
)
def test_assembler_that_is_put_together_is_pointed_at(line):
    text = ADDS.replace("tl.atomic_add(ptr, x)", line).replace("asm(", "tl.inline_asm_elementwise(")
    assert added((Cell("mine", text),), {"_first"}) == [("mine", 6, "puts assembler together")]
    for whole in ("'mov' '.b32'", "TEXT"):
        fine = ADDS.replace("tl.atomic_add(ptr, x)", f"tl.inline_asm_elementwise({whole}, x)")
        assert added((Cell("mine", fine),), {"_first"}) == []


@pytest.mark.parametrize(
    "text",
    [ADDS.replace("@triton.jit", "@[triton.jit][0]"), ADDS + "def never(a, a): pass\n"],
    ids=["a decorator of another form", "a cell that no Python runs"],
)
def test_a_kernel_that_adds_is_found_however_it_came_to_be_one(text):
    """A player makes kernels of the functions that it is told of, and asks for no more than their text."""
    assert added((Cell("mine", text),), {"_first"}) == [("mine", 6, "adds by atomic_add")]
