"""Under which conditions compiled code may be used again, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from course_lib.table import Table
from course_lib.torch_inside.events import GUARDS
from course_lib.torch_inside.watching import Watched

LINE = re.compile(r"^[|\s]*\+- (\w+): (.*)$", re.MULTILINE)
TENSOR = re.compile(
    r"check_tensor\((?P<source>.+), (?P<type>\w+), DispatchKeySet\((?P<keys>[^)]*)\), torch\.(?P<rest>.*)"
)
REST = re.compile(r"(\w+), device=(\w+), requires_grad=(\w+), size=\[(.*?)\](?:, stride=\[(.*?)\])?")
# after "type=" torch 2.13 prints the class of the object, and torch 2.11 the object
OF_TORCH = re.compile(r"type=<(class '(module|builtin_function_or_method)'>|module '|built-in (function|method) )")
CONSTANTS = {"TRUE_MATCH": "True", "FALSE_MATCH": "False", "NONE_MATCH": "None"}


class Guard(NamedTuple):
    what: str  # "x", "self.lin.weight", "global SCALE"
    must: str  # "be a float32 tensor of size (4, 4) on cpu that needs no gradient"
    kind: str  # torch's name for it
    text: str  # as torch prints it


# Guards on state that no program of this course changes. They are checked at every call, so the note counts them.
AMBIENT = {
    "GLOBAL_STATE",
    "TORCH_FUNCTION_MODE_STACK",
    "DEFAULT_DEVICE",
    "DIMENSION_DYNAMIC_MARKING_GUARD",
    "AUTOGRAD_SAVED_TENSORS_HOOKS",
}


def guards(seen: Watched, compilation: str | None = None, everything: bool = False) -> Table:
    """The guards of one compilation ("0/0"), or of the last one.

    `everything` lists also those on torch's own modules, on the types of containers and on the global state.
    """
    found = [c for c in seen.expect(GUARDS) if c.of(GUARDS) and compilation in (None, c.id)]
    if not found:
        return Table((), (), caption="no guards", note="Nothing was compiled.")
    one = found[-1]
    rows = list(_rows(one.of(GUARDS)[-1].text))
    shown = tuple(row for row in rows if everything or _matters(row))
    left_out = len(rows) - len(shown)
    note = f"{left_out} more: the global state, torch's own code, types of containers." if left_out else ""
    title = f"guards of {one.piece}, compilation {one.id}: the code is used again when"
    columns = ("what", "must", "kind", "as torch prints it")
    return Table(columns, shown, caption=title, note=note, code=("what", "as torch prints it"))


def _rows(tree: str) -> Iterator[Guard]:
    seen = set()
    for kind, text in LINE.findall(tree):
        if kind.endswith("Manager"):  # it holds the guards of an object and is no guard itself
            continue
        code = text.split("  # ")[0].strip()
        what, must = _in_words(kind, code)
        if (what, must) not in seen:
            seen.add((what, must))
            yield Guard(what, must, kind, code)


def _matters(guard: Guard) -> bool:
    if guard.kind in AMBIENT or "saved_tensors_hooks" in guard.text:
        return False
    of_torch = guard.what.startswith("G[") or "__import_torch" in guard.text or "__builtins" in guard.text
    of_torch = of_torch or OF_TORCH.search(guard.text)
    containers = guard.kind in (
        "TYPE_MATCH",
        "DICT_CONTAINS",
        "DICT_VERSION",
        "NO_HASATTR",
        "NOT_PRESENT_IN_GENERIC_DICT",
    )
    return not (of_torch or containers)


def _in_words(kind: str, code: str) -> tuple[str, str]:
    if kind == "TENSOR_MATCH" and (tensor := TENSOR.match(code)):
        return name_of(tensor["source"]), _tensor(tensor)
    if "==" in code and kind in ("EQUALS_MATCH", "CONSTANT_MATCH", "BOOL_MATCH", "LAMBDA_GUARD", "SHAPE_ENV"):
        left, _, right = code.partition(" == ")
        return name_of(left), f"equal {name_of(right)}"
    if code.startswith(("___check_obj_id(", "___check_type_id(")):
        source = code.partition("(")[2].rpartition(", type=")[0].rpartition(",")[0] or code
        return name_of(source), "be the same object" if "obj_id" in code else "be of the same type"
    if kind in CONSTANTS:
        return name_of(re.split(r" == | is ", code)[0]), f"be {CONSTANTS[kind]}"
    if kind == "ID_MATCH":
        return name_of(code.rpartition(" is ")[0] or code), "be the same object"
    if kind in ("LAMBDA_GUARD", "SHAPE_ENV", "SYMBOLIC_SHAPE_GUARD"):
        return "sizes", f"satisfy {name_of(code)}"
    if kind == "NO_TENSOR_ALIASING":
        return "tensors", "not share memory"
    return name_of(code), f"pass {kind}"


def _tensor(tensor: re.Match) -> str:
    found = REST.match(tensor["rest"])
    if not found:
        return f"be like torch.{tensor['rest']}"
    dtype, _, needs, sizes, strides = found.groups()
    device = "cuda" if "CUDA" in tensor["keys"] else "cpu" if "CPU" in tensor["keys"] else "the same device"
    size = "(" + sizes.replace("None", "any") + ")"
    stride = f", strides ({strides.replace('None', 'any')})" if strides else ""
    grad = "that needs a gradient" if needs == "True" else "that needs no gradient"
    return f"be a {dtype} tensor on {device} of size {size}{stride}, {grad}"


def name_of(source: str) -> str:
    """L['x'].size()[0] -> x.size(0), as the reader wrote it."""
    text = re.sub(r"L\['(\w+)'\]", r"\1", source)
    text = re.sub(r"G\['(\w+)'\]", r"global \1", text)
    text = re.sub(r"\._(?:modules|parameters|buffers)\['(\w+)'\]", r".\1", text)
    text = re.sub(r"\.(size|stride)\(\)\[(\d+)\]", r".\1(\2)", text)
    return text
