"""The fresh process that compiles kernels: a list of descriptions on stdin, a line of stdout for each.

It imports nothing of the course, because that would choose the interpreter on a machine without a GPU.
"""

import ast
import contextlib
import functools
import importlib
import io
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
from collections import namedtuple

# One line of PTX each; counted as they stand in the text, not as often as they run.
INSTRUCTIONS = {
    "tcgen05": r"tcgen05\.mma",
    "wgmma": r"wgmma\.mma_async",
    "mma": r"\bmma\.sync",
    "tma": r"cp\.async\.bulk\.tensor",
    "cp.async": r"cp\.async\.c[ag]\.",
    "ldmatrix": r"\bldmatrix",
    "ld.global": r"\bld\.global",
    "ld.global.v4": r"\bld\.global\S*\.v4\.",
    "st.global": r"\bst\.global",
    "st.global.v4": r"\bst\.global\S*\.v4\.",
    "atomic": r"\b(?:atom|red)\.",
    "barrier": r"\bbar(?:rier)?\.sync",
}

WRAPPERS = {
    "jit": lambda: importlib.import_module("triton").jit,
    "constexpr_function": lambda: of_constants,
    "gluon": lambda: importlib.import_module("triton.experimental.gluon").jit,
    "builtin": lambda: importlib.import_module("triton.experimental.gluon.language._core").builtin,
}


def main() -> None:
    requests = json.load(sys.stdin)
    reply = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a kernel prints while it is compiled is no answer
    for request in requests:
        print(json.dumps(answered(request)), file=reply, flush=True)


def answered(request: dict) -> dict:
    from triton.compiler.errors import CompilationError

    jitted: dict = {}
    try:
        return compile_request(request, jitted)
    except CompilationError as error:
        return {"error": explain(error, request, jitted)}
    except Exception as error:
        return {"error": {"message": f"{type(error).__name__}: {error}"}}


def compile_request(request: dict, jitted: dict) -> dict:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if "module" in request:
        kernel = from_module(request["module"], request["entry"], jitted)
    else:
        kernel = build(request, jitted, request["entry"], request["wrapper"])
    constants = {key: value_of(form, request, jitted) for key, form in request["constexprs"].items()}
    signature, attrs = {}, {}
    for i, param in enumerate(kernel.params):
        kind = request["signature"].get(param.name, "default")
        if kind == "default":
            kind, constants[param.name] = "constexpr", param.default
        signature[param.name], fixed, aligned = typed(kind, (i,))
        constants |= fixed
        if request["divisible"]:
            attrs |= {path: [["tt.divisibility", 16]] for path in aligned}
    if kernel.is_gluon():
        from triton.experimental.gluon._runtime import GluonASTSource as ASTSource
    source, target = (
        ASTSource(kernel, signature, constexprs=constants, attrs=attrs),
        GPUTarget("cuda", request["arch"], 32),
    )
    options = {name: request[name] for name in ("num_warps", "num_stages", "maxnreg") if name in request}
    if request.get("only_read"):
        read(source, target, options)
        return {"read": True}
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"
    log = io.StringIO()
    with contextlib.redirect_stdout(log):
        compiled = triton.compile(source, target=target, options=options)
    ptx = compiled.asm["ptx"]
    usage, sass = disassemble(compiled.asm["cubin"])
    spills = re.search(r"(\d+) bytes spill stores", log.getvalue())
    return {
        "name": kernel.fn.__name__,
        "ptx": ptx,
        "sass": sass,
        "registers": usage.get("REG", 0),
        # The stack may also hold local arrays; the assembler's log counts spills alone.
        "spills_bytes": int(spills[1]) if spills else usage.get("STACK", 0),
        "shared_bytes": compiled.metadata.shared,
        "instructions": {name: len(re.findall(regex, ptx)) for name, regex in INSTRUCTIONS.items()},
        "has_dot": "tt.dot" in compiled.asm.get("ttir", ""),  # Gluon begins one step later
    }


def typed(kind, path: tuple[int, ...]):
    """The type of one argument, and by their paths its constant elements, and those whose alignment can be told.

    A tuple comes as a list of types and of numbers. A number is a constant: a launch makes one of every 1.
    """
    names = kind["names"] if isinstance(kind, dict) else None
    kind = kind["kinds"] if isinstance(kind, dict) else kind
    if isinstance(kind, str):
        return kind, {}, [path] if re.match(r"\*|[iu]\d+$", kind) else []
    if not isinstance(kind, list):
        return "constexpr", {path: kind}, []
    kinds, fixed, aligned = [], {}, []
    for i, one in enumerate(kind):
        inner, constants, places = typed(one, (*path, i))
        kinds.append(inner)
        fixed |= constants
        aligned += places
    return tuple_of(kinds, names), fixed, aligned


def tuple_of(values: list, names) -> tuple:
    return namedtuple("Named", names)(*values) if names else tuple(values)


def read(source, target, options: dict) -> None:
    """The first step of the compiler alone: Triton's own language, into its first form."""
    from triton._C.libtriton import ir
    from triton.compiler import make_backend

    backend, context = make_backend(target), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options(options)
    source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)


def disassemble(cubin: bytes, sass: bool = True) -> tuple[dict[str, int], str | None]:
    """Registers and stack a thread, and the machine code if it is asked for, from the tool in Triton's package."""
    import triton

    tool = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "cuobjdump")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "--dump-resource-usage", *["--dump-sass"] * sass, file.name]
        try:
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return {}, None
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}, text


def remember(file: str, line: int, text: str) -> str:
    """Let inspect find `text` at its own line of its own file, which need not exist here."""
    name = f"<{file}>"
    lines = linecache.cache[name][2] if name in linecache.cache else []
    new = text.splitlines(keepends=True)
    lines += ["\n"] * (line - 1 + len(new) - len(lines))
    lines[line - 1 : line - 1 + len(new)] = new
    linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    return name


def build(request: dict, jitted: dict, key: str, wrapper: str = "jit"):
    """Make the function `key` and what it uses."""
    if key in jitted:
        return jitted[key]
    described = request["functions"][key]
    space: dict = {"__name__": "student"}
    # Names first: annotations and defaults are evaluated when the function is made.
    for name, form in described["names"].items():
        if form[0] not in WRAPPERS:
            space[name] = value_of(form, request, jitted)
    name = remember(described["file"], described["line"], described["text"])
    exec(compile("\n" * (described["line"] - 1) + described["text"], name, "exec"), space)
    jitted[key] = made = WRAPPERS[wrapper]()(space[described["name"]])
    for other, form in described["names"].items():
        if form[0] in WRAPPERS:
            space[other] = value_of(form, request, jitted)
    return made


def of_constants(function):
    """Under @triton.constexpr_function. Constants in a tuple come as what they hold, as those beside one do, so that
    the function sees what it sees in the interpreter."""
    import triton

    @functools.wraps(function)
    def called(*args, **kwargs):
        return function(*map(held, args), **{name: held(value) for name, value in kwargs.items()})

    return triton.constexpr_function(called)


def held(value):
    import triton.language as tl

    if isinstance(value, tl.constexpr):
        return held(value.value)
    if isinstance(value, (tuple, tl.tuple)):
        names = getattr(value, "_fields", None) or getattr(getattr(value, "type", None), "fields", None)
        return tuple_of([held(one) for one in value], names)
    return value


def value_of(form, request: dict, jitted: dict):
    import triton.language as tl

    tag, *rest = form
    if tag == "plain":
        return rest[0]
    if tag == "constexpr":
        return tl.constexpr(value_of(rest[0], request, jitted))
    if tag == "dtype":
        return tl.dtype(rest[0])
    if tag == "tuple":
        return tuple_of([value_of(one, request, jitted) for one in rest[0]], rest[1])
    if tag == "named":
        return namedtuple("Named", rest[0], defaults=[value_of(one, request, jitted) for one in rest[1]])
    if tag == "module":
        return importlib.import_module(rest[0])
    if tag == "attribute":
        return getattr(importlib.import_module(rest[0]), rest[1])
    return build(request, jitted, rest[0], wrapper=tag)


def from_module(module: dict, name: str, jitted: dict):
    """Kernels, constants and Triton imports of a source file; everything else in it is left unexecuted."""
    import triton

    file = remember(module["file"], 1, module["text"])
    space = {"__name__": "kernel_source"}
    for node in ast.parse(module["text"]).body:
        names = [one.name for one in getattr(node, "names", [])] + [getattr(node, "module", None) or ""]
        of_triton = any(one.split(".")[0] in ("triton", "math") for one in names)
        is_import = isinstance(node, (ast.Import, ast.ImportFrom)) and of_triton
        decorators = [ast.unparse(one) for one in getattr(node, "decorator_list", [])]
        wrapper = next((one for one in ("jit", "constexpr_function") for d in decorators if one in d), None)
        if not (is_import or wrapper or isinstance(node, (ast.Assign, ast.AnnAssign))):
            continue
        if wrapper:
            node.decorator_list = []
        with contextlib.suppress(*([] if is_import or wrapper else [Exception])):
            exec(compile(ast.Module([node], []), file, "exec"), space)
        if wrapper:
            space[node.name] = jitted[node.name] = getattr(triton, wrapper)(space[node.name])
    if name not in jitted:
        raise NameError(f"there is no @triton.jit function {name} in {module['file']}")
    return jitted[name]


def explain(error, request: dict, jitted: dict) -> dict:
    """The innermost message, at the innermost line that is the student's own."""
    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    messages = [getattr(one, "error_message", None) or "" for one in chain]
    message = next((text for text in reversed(messages) if text), str(chain[-1]) or type(chain[-1]).__name__)
    if type(error).__name__ == "CompileTimeAssertionFailure":
        message = f"static_assert failed: {message}"
    for one in reversed(chain):
        for fn in jitted.values():
            node, text = getattr(one, "node", None), getattr(fn, "src", None)
            if text and text == getattr(one, "src", None) and hasattr(node, "lineno"):
                line = fn.fn.__code__.co_firstlineno + node.lineno - 1
                file = fn.fn.__code__.co_filename
                source = linecache.getline(file, line).strip()
                return {"message": message, "file": file.strip("<>"), "line": line, "source": source}
    return {"message": message}


if __name__ == "__main__":
    main()
