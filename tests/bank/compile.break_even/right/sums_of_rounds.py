"""One round after the other, with arrays."""

import numpy as np


def break_even(eager, compiled, steps):
    gain = {s: float(np.median(eager[s][6:]) - np.median(compiled[s][6:])) for s in eager}
    a_round = sum(gain[s] for s in steps)
    if a_round <= 0:
        return None
    debt = sum(sum(compiled[s][:6]) - sum(eager[s][:6]) + 6 * gain[s] for s in set(steps))
    rounds = int(max(0, debt) / a_round) + 20
    order = np.array(list(steps) * rounds)
    saved = np.zeros(len(order))
    for s in set(steps):
        places = np.flatnonzero(order == s)
        saved[places] = gain[s]
        few = min(6, len(places))
        saved[places[:few]] = np.array(eager[s][:few]) - np.array(compiled[s][:few])
    behind = np.flatnonzero(np.cumsum(saved) < 0)
    return int(behind[-1]) + 2 if len(behind) else 1
