"""Sizes of calls that use what is compiled are remembered too."""

KILLED_BY = "dynamic=True, squares of two types"


def compiles(calls, dynamic, marked, limit):
    entries = []  # what was compiled: the kind of tensor and one condition for each dimension
    changed, last = [False, False], None
    answer = []
    for call in calls:
        shape = call["shape"]
        kind = (call["dtype"], call["needs_grad"])
        changed = [c or a != b for c, a, b in zip(changed, last or shape, shape)]
        last = shape
        if any(holds(entry, kind, shape) for entry in entries):
            answer.append(False)
            continue
        if len(entries) >= limit:
            answer.append(False)
            continue
        conditions = []
        for i, size in enumerate(shape):
            if size in (0, 1):
                conditions.append("static")
            elif i in marked:
                conditions.append("dynamic")
            elif dynamic is False:
                conditions.append("static")
            elif changed[i]:
                conditions.append("dynamic")
            elif dynamic is True:
                conditions.append("duck")
            else:
                conditions.append("static")
        entries.append((kind, shape, conditions))
        answer.append(True)
    return answer


def holds(entry, kind, shape):
    known_kind, known_shape, conditions = entry
    if kind != known_kind:
        return False
    for condition, known, size in zip(conditions, known_shape, shape):
        if condition == "static" and size != known:
            return False
        if condition != "static" and size in (0, 1):
            return False
    if conditions == ["duck", "duck"] and known_shape[0] == known_shape[1]:
        return shape[0] == shape[1]
    return True
