"""When compiling a call pays, and the keys of a call."""

import ipywidgets

from course_lib.plots.break_even import break_even_calls, pays, saved_words, totals, until_even
from course_lib.plots.dispatch_keys import call_path, key_map
from course_lib.plots.house import axes_or_new, drawn
from course_lib.torch_inside import situations
from course_lib.widgets.explorer import Explorer, powers, slider
from course_lib.widgets.live import Live

__all__ = ["break_even_explorer", "key_set_builder"]


@drawn
def break_even_explorer():
    """Seconds saved by compiling against the number of calls: how long a call takes, what it gains, how many shapes.

    Every shape costs one compilation; shapes take turns, so all are met in the first calls.
    """
    axes = axes_or_new(None, 7.0, 4.0)

    def costs(eager_ms, percent, compile_s, shapes):
        eager = 1e-3 * eager_ms
        return eager, eager * (1 - percent / 100), float(compile_s * shapes)

    def numbers(**state):
        eager, compiled, once = costs(**state)
        meets = break_even_calls(eager, compiled, once)
        return {
            "gain": eager - compiled,
            "once": once,
            "meets": meets if meets < float("inf") else None,
            "shown": until_even([meets]),
            "title": f"this program: {pays(meets)}",
            "words": saved_words(eager, compiled, once),
        }

    def move(**state):
        seen = numbers(**state)
        axes.clear()
        totals({"this program": costs(**state)}, axes, title=seen["title"])
        return seen["words"]

    def still():
        places = {"10 ms, 30 % less": (10, 30, 10, 1), "3 shapes": (10, 30, 10, 3), "20 ms": (20, 30, 10, 1),
                  "50 % less": (10, 50, 10, 1)}  # fmt: skip
        named = {n: (ms / 1e3, ms / 1e3 * (1 - p / 100), float(s * k)) for n, (ms, p, s, k) in places.items()}
        title = "A longer call pays sooner, and so does a larger gain; each new shape puts it off"
        return totals(named, title=title)

    controls = {
        "eager_ms": powers("eager call (ms)", range(12), 16),
        "percent": slider("time saved a call (%)", 0, 80, 30),
        "compile_s": slider("one compilation (s)", 1, 120, 10),
        "shapes": slider("shapes compiled", 1, 8, 1),
    }
    alt = (
        "Seconds saved against the number of calls: each line starts below zero by the time of compiling and rises; "
        "a longer call or a larger gain crosses zero earlier, three shapes cross it later."
    )
    return Explorer(axes, controls, move, still, alt, Live("break_even", numbers))


@drawn
def key_set_builder():
    """A call put together from a few facts, its keys as torch gives them at that moment, and its path.

    The still has one column for each fact, changed alone.
    """
    axes = axes_or_new(None, 9.2, 4.2)
    rows = 10.5  # as many as the longest path needs, so that nothing jumps

    def move(operator, kind, device, requires_grad, **ticked):
        around = [name for name in situations.AROUND if ticked[_PLAIN.get(name, name)]]
        path = situations.path_in(operator, kind, device, requires_grad, around)
        axes.clear()
        call_path(path, axes).set_ylim(rows, axes.get_ylim()[1])
        keys = [row.key for row in path if row.state != "excluded"]
        excluded = [row.key for row in path if row.state == "excluded"]
        return f"The set, highest first: {', '.join(keys)}. Excluded: {', '.join(excluded) or 'nothing'}."

    def still():
        plain = ("mm(x, y)", "an ordinary tensor", "cpu", False, ())
        asked = {"an ordinary tensor": plain, "a gradient is required": (*plain[:3], True, ())}
        asked |= {name.replace("handler", "in its handler"): (*plain[:4], (name,)) for name in situations.AROUND}
        asked |= {kind: (plain[0], kind, *plain[2:]) for kind in list(situations.KINDS)[1:]}
        asked["on meta"] = (*plain[:2], "meta", *plain[3:])
        return key_map({name: situations.path_in(*facts) for name, facts in asked.items()}, order=situations.order())

    controls = {
        "operator": ipywidgets.Dropdown(options=list(situations.OPERATORS), description="operator"),
        "kind": ipywidgets.Dropdown(options=list(situations.KINDS), description="x is"),
        "device": ipywidgets.ToggleButtons(options=situations.devices(), description="lives on"),
        "requires_grad": ipywidgets.Checkbox(False, description="x requires a gradient"),
    }
    for name in situations.AROUND:
        controls[_PLAIN.get(name, name)] = ipywidgets.Checkbox(False, description=_SAYS[name])
    alt = (
        "Dispatch keys from the highest to the lowest against situations of one call: which keys run a kernel, pass "
        "the call on, are excluded or not reached. An ordinary tensor and one that requires a gradient have the same "
        "column; inference mode, autocast, modes, wrappers, vmap and meta change it."
    )
    return Explorer(axes, controls, move, still, alt)


_PLAIN = {"dispatch mode": "dispatch_mode"}  # a name that Python takes as an argument


_SAYS = {
    "autocast": "in autocast",
    "inference_mode": "in inference mode",
    "no_grad": "in no_grad",
    "dispatch mode": "under a dispatch mode",
    "handler": "in the handler of a mode",
    "vmap": "in torch.func.vmap",
}
