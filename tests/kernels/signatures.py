"""What a compiler without a GPU has to be told about a kernel's arguments."""

from collections.abc import Container, Mapping


def signature_of(
    kernel, fixed: Container[str], types: Mapping[str, str | tuple], pointer: str = "*bf16"
) -> dict[str, str | tuple]:
    """Types of all arguments that are not fixed: those in `types`; else pointers to `pointer`, and integers."""
    names = [name for name in kernel.arg_names if name not in fixed]
    return {name: types.get(name, pointer if name.endswith("_ptr") else "i32") for name in names}
