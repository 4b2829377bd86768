"""The half of an explorer that needs no kernel: one ES module each, shown by anywidget in a notebook and by the site.

`js/NAME.mjs` holds `numbers(state, data)`, which gives what Python's `numbers(**state)` gives, and draws it; what all
of them share is in js/drawing.mjs. A test compares the two over the states of every explorer.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import ipywidgets

__all__ = ["MODULES", "Live", "script", "view", "whole"]

MODULES = Path(__file__).parent / "js"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./drawing\.mjs";\n', re.MULTILINE)


def _nothing() -> dict:
    return {}


@dataclass(frozen=True)
class Live:
    """How an explorer moves without Python."""

    module: str  # a file of js/, without its ending
    numbers: Callable[..., dict]  # state -> title, words, and the numbers behind the picture, as the module gives them
    data: Callable[[], dict] = _nothing  # what the module has to know besides the state; asked when it is shown


def described(name: str, control: ipywidgets.Widget) -> dict:
    """A control of ipywidgets in the words of js/drawing.mjs."""
    given = {"name": name, "label": control.description}
    if isinstance(control, ipywidgets.IntSlider):
        return given | {"kind": "range", "low": control.min, "high": control.max}
    if isinstance(control, ipywidgets.SelectionSlider):
        return given | {"kind": "steps", "options": list(control.options)}
    if isinstance(control, ipywidgets.Dropdown | ipywidgets.ToggleButtons):
        return given | {"kind": "choice", "options": list(control.options)}
    if isinstance(control, ipywidgets.Checkbox):
        return given | {"kind": "tick"}
    if isinstance(control, ipywidgets.FloatText):
        return given | {"kind": "number"}
    raise TypeError(f"{name}: js/drawing.mjs knows no {type(control).__name__}")


@functools.cache
def whole(module: str) -> str:
    """The module and what it shares with the others as one text, which imports nothing."""
    own, shared = ((MODULES / f"{name}.mjs").read_text(encoding="utf-8") for name in (module, "drawing"))
    if not _IMPORT.search(own):
        raise ValueError(f"js/{module}.mjs imports nothing of drawing.mjs in a line of its own")
    return f"{shared}\n{_IMPORT.sub('', own)}"


def script(module: str, spec: dict, element: str) -> str:
    """A script for a page: shows the explorer in the element of this id. It asks for no other file."""
    said = json.dumps(spec, ensure_ascii=False, allow_nan=False).replace("</", "<\\/")
    return f"{whole(module)}\nmount(document.getElementById({json.dumps(element)}), {said});\n"


@functools.cache
def _kind(module: str):
    """The widget class of a module, or None where anywidget is not installed."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        return None
    synced = {name: traitlets.Dict().tag(sync=True) for name in ("spec", "state")}
    return type("LiveExplorer", (anywidget.AnyWidget,), {"_esm": whole(module), **synced})


def view(live: Live, spec: Callable[[], dict], controls: Mapping[str, ipywidgets.Widget]) -> ipywidgets.Widget | None:
    """The widget that a notebook shows, its state tied to the controls; None without anywidget."""
    kind = _kind(live.module)
    if kind is None:
        return None
    given = spec()
    shown = kind(spec=given, state=given["state"])

    def from_browser(change):
        for name, value in change["new"].items():
            controls[name].value = value

    def from_python(_):
        shown.state = {name: control.value for name, control in controls.items()}

    shown.observe(from_browser, names="state")
    for control in controls.values():
        control.observe(from_python, names="value")
    return shown
