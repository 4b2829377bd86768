"""Each compilation as torch prints it: numbers and symbols; symbols that are shared must get one value."""


class Code:
    def __init__(self, call, pattern):
        self.kind = call["dtype"], call["needs_grad"]
        self.pattern = pattern

    def matches(self, call):
        if self.kind != (call["dtype"], call["needs_grad"]):
            return False
        values = {}
        for place, size in zip(self.pattern, call["shape"]):
            if isinstance(place, int):
                if place != size:
                    return False
            elif size < 2 or values.setdefault(place, size) != size:
                return False
        return True


def compiles(calls, dynamic, marked, limit):
    codes, history, said = [], [], []
    for call in calls:
        new = len(codes) < limit and not any(code.matches(call) for code in codes)
        if new:
            history.append(call["shape"])
            codes.append(Code(call, [place(i, history, dynamic, marked) for i in (0, 1)]))
        said.append(new)
    return said


def place(i, history, dynamic, marked):
    size = history[-1][i]
    moved = len({shape[i] for shape in history}) > 1
    if size < 2:
        return size
    if i in marked or (moved and dynamic is not False):
        return f"s{i}"
    if dynamic:
        return f"size {size}"  # equal sizes, one symbol
    return size
