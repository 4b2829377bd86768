"""Asks the course's own probe."""

KILLED_BY = "no gradient required"


def keys(tensors, around):
    from course_lib.probes.keysets import met

    return met(tensors, around)
