"""Private parts of Triton, looked up by name so that a Triton without them says so."""

import triton

__all__ = ["part", "replace"]


def part(owner, name: str):
    """A part of Triton by name, or a plain error that names the version."""
    try:
        return getattr(owner, name)
    except AttributeError:
        raise RuntimeError(
            f"Expected triton's interpreter to have {getattr(owner, '__name__', owner)}.{name}, as in triton "
            f"3.6 and 3.7; triton {triton.__version__} has not, so its interpreter cannot be made safe. "
            "Install the triton version in requirements.txt, or use a GPU."
        ) from None


def replace(owner, name: str, make) -> None:
    """owner.name = make(original); the original must exist."""
    setattr(owner, name, make(part(owner, name)))
