"""Wrong answers."""

MISTAKES = ()
