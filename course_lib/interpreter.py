"""Makes Triton's interpreter safe to learn with."""

__all__ = ["install"]


def install() -> None:
    """Install the patches; calling it again changes nothing."""
