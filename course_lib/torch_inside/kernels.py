"""The code that Inductor wrote, kernel by kernel, beside the lines of Python that each computes."""

from __future__ import annotations

import ast
import html
import json
import re
from typing import NamedTuple

from course_lib.table import Table
from course_lib.torch_inside.events import CODE, LINES
from course_lib.torch_inside.watching import Compilation, Watched, short

PLACE = re.compile(r'File "(.*)", line (\d+), in .*\n\s*(.*)')
HANDLE = re.compile(r"# \[Provenance debug handles\] (\S+)")
CASTS = (
    (re.compile(r"static_cast<int64_t>\((\w+?)L?\)"), r"\1"),
    (re.compile(r"static_cast<int64_t>\(([^()]*)\)"), r"\1"),
    (re.compile(r"static_cast<float>\((-?[\d.]+)\)"), r"\1f"),
    (re.compile(r"\b(\d+)L\b"), r"\1"),
)


class Kernel(NamedTuple):
    name: str
    runs: str  # "forward" or "backward"
    python: str  # the lines that it computes
    code: str  # cut to what computes
    language: str  # "C++", "Triton", or "library" where a product of matrices is left to one


class Listing(Table):
    """One kernel under the other: code beside anything else is too wide for a console, and for a page."""

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{html.escape(self.caption)}</b></p>"]
        for row in self.rows:
            parts.append(f"<p><b>{html.escape(row.name)}</b>: {html.escape(row.runs)}, {html.escape(row.language)}</p>")
            code = "\n".join(filter(None, (row.python, row.code)))
            parts.append(f"<pre style='overflow-x:auto'>{html.escape(code)}</pre>")
        return "".join(parts)

    def __str__(self) -> str:
        lines = [self.caption]
        for row in self.rows:
            lines += ["", f"{row.name}: {row.runs}, {row.language}", *row.python.split("\n"), *row.code.split("\n")]
        return "\n".join(lines).rstrip()


def kernels(seen: Watched, compilation: str | None = None) -> Listing:
    """The kernels that are launched, in order: those of all watched compilations, or of one.

    C++ is shown without casts of indices and without checks of integer divisions, Triton without its header. Everything
    that computes is shown.
    """
    found = [c for c in seen.expect(CODE) if compilation in (None, c.id)]
    rows = [row for one in found for row in _rows(one)]
    columns = ("kernel", "runs in", "Python", "code", "language")
    caption = f"{len(rows)} kernel{'' if len(rows) == 1 else 's'}"
    return Listing(columns, tuple(rows), caption=caption, code=("Python", "code"))


def _rows(one: Compilation):
    for module, known in _modules(one):
        runs = "backward" if re.search(r"AOT ID: \['\d+_backward'\]", module) else "forward"
        written = dict(_written(module))
        # the record of a backward pass also lists kernels of earlier backward passes; the module names its own kernels
        own = set(HANDLE.findall(module)) & set(known) or set(known)
        # keys end in the number of the launch: "cpp_fused_add_0:1"
        for key in sorted(own, key=lambda k: int(k.rpartition(":")[2] or 0)):
            name = key.rpartition(":")[0] or key
            language, code = written.pop(name, ("library", ""))
            yield Kernel(name, runs, _python(known[key]), code, language)
        for name, (language, code) in written.items():
            yield Kernel(name, runs, "", code, language)


def _modules(one: Compilation) -> list[tuple[str, dict]]:
    """Every module that was written, with kernel -> stacks from the entry that follows it."""
    found: list[tuple[str, dict]] = []
    for event in one.of(CODE, LINES):
        if event.kind == CODE:
            found.append((event.text, {}))
        elif found and not found[-1][1]:
            found[-1] = found[-1][0], json.loads(event.text or "{}")
    return found


def _written(module: str):
    """(name, (language, code)) of every kernel in the Python module that Inductor writes."""
    for node in ast.parse(module).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)):
            continue
        call, name = node.value, ast.unparse(node.targets[0])
        texts = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        how = ast.unparse(call.func)
        if how == "async_compile.cpp_pybinding" and texts:
            yield name, ("C++", cut_cpp(texts[-1]))
        elif how == "async_compile.triton" and texts:
            yield name, ("Triton", cut_triton(texts[-1]))


def cut_cpp(text: str) -> str:
    """A C++ kernel without includes, casts of indices and the check of integer divisions."""
    kept = []
    for line in text.strip().split("\n"):
        if line.startswith("#include") or "integer_div_error" in line or "#pragma GCC ivdep" in line:
            continue
        for pattern, simple in CASTS:
            line = pattern.sub(simple, line)
        kept.append(line.rstrip())
    return "\n".join(kept).replace('extern "C"  void  kernel', "void kernel")


def cut_triton(text: str) -> str:
    """A Triton kernel from its `@triton.jit` on."""
    at = text.find("@triton.jit")
    return text[at:].rstrip() if at >= 0 else text.strip()


def _python(stacks: list[str]) -> str:
    """The innermost line of each stack, each once, in the order of the file."""
    places = {}
    for stack in stacks:
        found = PLACE.findall(stack)
        if found:
            path, line, source = found[-1]
            places[short(path), int(line)] = source.strip()
    return "\n".join(f"{path}:{line}  {source}" for (path, line), source in sorted(places.items()))
