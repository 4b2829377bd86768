"""Sets the limit of the compiler first."""

KILLED_BY = "squares"


def compiles(calls, dynamic, marked, limit):
    import torch._dynamo

    torch._dynamo.config.recompile_limit = limit
    return [True for _ in calls]
