"""How a kernel travels to another process: as text, with the functions and constants that it uses.

The text comes from inspect, so a kernel may live in a file or in a notebook cell. Only names that the
function uses are sent along: jit functions and builtins of ours (also as text), plain constants, dtypes and modules of
Triton.
"""

import ast
import inspect
import textwrap
from pathlib import Path
from types import ModuleType

__all__ = ["describe"]

MODULES = ("triton", "math")  # what a kernel may name as a module


def describe(fn, signature: dict[str, str | tuple], constexprs: dict) -> dict:
    """A JSON-ready description of a kernel and its arguments."""
    if isinstance(fn, tuple):
        return _from_text(*fn, signature, constexprs)
    functions: dict[str, dict] = {}
    entry = _add(_plain(fn), functions)
    parameters = inspect.signature(_plain(fn)).parameters
    return {
        "functions": functions,
        "entry": entry,
        "wrapper": _wrapper(fn),
        "signature": _complete(parameters, _plain(fn).__name__, signature, constexprs),
        "constexprs": {name: _value(value, functions) for name, value in constexprs.items()},
    }


def _from_text(where, name: str, signature: dict[str, str | tuple], constexprs: dict) -> dict:
    is_path = isinstance(where, Path) or "\n" not in where
    text = Path(where).read_text() if is_path else where
    functions: dict[str, dict] = {}
    return {
        "module": {"text": text, "file": str(where) if is_path else "<source>"},
        "functions": functions,
        "entry": name,
        "signature": signature | dict.fromkeys(constexprs, "constexpr"),
        "constexprs": {key: _value(value, functions) for key, value in constexprs.items()},
    }


def _plain(fn):
    """The Python function under @triton.jit, @triton.autotune, @triton.heuristics, interpreted or not."""
    while not inspect.isfunction(fn):
        if not hasattr(fn, "fn"):
            raise TypeError(f"Expected a @triton.jit function, got {type(fn).__name__}.")
        fn = fn.fn
    return inspect.unwrap(fn)


def _wrapper(fn) -> str:
    return {"ConstexprFunction": "constexpr_function", "GluonJITFunction": "gluon"}.get(type(fn).__name__, "jit")


def _complete(parameters, name: str, signature: dict[str, str | tuple], constexprs: dict) -> dict[str, str | tuple]:
    """The type of every parameter in order; a plain error when one is missing or unknown."""
    given = signature | dict.fromkeys(constexprs, "constexpr")
    optional = {key for key, one in parameters.items() if one.default is not inspect.Parameter.empty}
    missing = [key for key in parameters if key not in given and key not in optional]
    unknown = [key for key in given if key not in parameters]
    if missing or unknown:
        raise TypeError(
            f"{name} has the arguments {', '.join(parameters)}. "
            + (f"No type or value is given for {', '.join(missing)}. " if missing else "")
            + (f"It has no {', '.join(unknown)}. " if unknown else "")
            + "Give types in signature and values of constexpr arguments in constexprs."
        )
    return {key: _kind(given.get(key, "default")) for key in parameters}


def _kind(kind):
    """A type, and those in a tuple, with the names that a named one has."""
    if not isinstance(kind, tuple):
        return kind
    kinds = [_kind(one) for one in kind]
    return {"names": kind._fields, "kinds": kinds} if hasattr(kind, "_fields") else kinds


def _add(fn, functions: dict[str, dict]) -> str:
    """Describe a function and, before it returns, all that it calls; the key it has in `functions`."""
    key = f"{fn.__module__}.{fn.__qualname__}:{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}"
    if key in functions:
        return key
    try:
        lines, first = inspect.getsourcelines(fn)
    except OSError:
        raise TypeError(
            f"The source of {fn.__name__} cannot be found. Define it in a file or a notebook cell, not with exec."
        ) from None
    text = textwrap.dedent("".join(lines))
    node = ast.parse(text).body[0]
    body = text.splitlines(keepends=True)[node.lineno - 1 :]  # without its decorators
    functions[key] = entry = {
        "name": fn.__name__,
        "file": fn.__code__.co_filename,
        "line": first + node.lineno - 1,
        "text": "".join(body),
        "names": {},
    }
    known = dict(inspect.getclosurevars(fn).nonlocals)
    mentioned = sorted({one.id for one in ast.walk(node) if isinstance(one, ast.Name)})
    for name in mentioned:
        value = known.get(name, fn.__globals__.get(name, entry))
        described = None if value is entry else _value(value, functions)
        if described is not None:
            entry["names"][name] = described
    return key


def _value(value, functions: dict[str, dict]):
    """A tagged JSON form of a value that a kernel may use, or None for what cannot travel."""
    kind = type(value).__name__
    if value is None or isinstance(value, (bool, int, float, str)):
        return ["plain", value]
    if kind == "constexpr":
        return ["constexpr", _value(value.value, functions)]
    if kind == "dtype":  # torch.dtype has the same class name but no `name`, and does not travel
        return ["dtype", value.name] if hasattr(value, "name") else None
    if isinstance(value, tuple):
        return ["tuple", [_value(one, functions) for one in value], getattr(value, "_fields", None)]
    if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
        defaults = [_value(one, functions) for one in value._field_defaults.values()]
        return None if None in defaults else ["named", value._fields, defaults]
    if isinstance(value, ModuleType):
        return ["module", value.__name__] if value.__name__.split(".")[0] in MODULES else None
    if hasattr(value, "fn"):
        plain = _plain(value)
        if plain.__module__.startswith("triton."):
            return ["attribute", plain.__module__, plain.__name__]
        return [_wrapper(value), _add(plain, functions)]
    module = getattr(value, "__module__", None) or ""
    if getattr(value, "__triton_builtin__", False) and not module.startswith("triton"):
        return ["builtin", _add(inspect.unwrap(value), functions)]
    if module.startswith("triton") and hasattr(value, "__qualname__"):
        return ["attribute", module, value.__qualname__]
    return None
