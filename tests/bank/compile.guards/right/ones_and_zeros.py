"""0s and 1s, which is as good as False and True; guards as functions."""


def compiles(calls, dynamic, marked, limit):
    guards, seen, out = [], [set(), set()], []
    for call in calls:
        if any(guard(call) for guard in guards) or len(guards) == limit:
            out.append(0)
            continue
        for sizes, n in zip(seen, call["shape"]):
            sizes.add(n)
        guards.append(guard_for(call, seen, dynamic, marked))
        out.append(1)
    return out


def guard_for(call, seen, dynamic, marked):
    rows, columns = call["shape"]

    own = [i in marked or (dynamic is not False and len(seen[i]) > 1) for i in (0, 1)]
    fixed = [call["shape"][i] <= 1 or not (own[i] or dynamic) for i in (0, 1)]
    square = rows == columns and not any(own + fixed)

    def guard(other):
        if (other["dtype"], other["needs_grad"]) != (call["dtype"], call["needs_grad"]):
            return False
        for i in (0, 1):
            ok = other["shape"][i] == call["shape"][i] if fixed[i] else other["shape"][i] >= 2
            if not ok:
                return False
        return not square or other["shape"][0] == other["shape"][1]

    return guard
