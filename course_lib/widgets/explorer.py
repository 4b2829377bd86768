"""Sliders above a figure, and a still of it where nobody can move a slider."""

import functools
from html import escape

import ipywidgets

from course_lib.plots.house import Shown, bundle, description, drawn, png
from course_lib.widgets import live

__all__ = ["Explorer", "powers", "slider"]


class Explorer:
    """Sliders above a figure, and one sentence that says what is seen.

    `controls["size"].value = 20` moves it from Python as a hand does in the browser. With `alone`, and where anywidget
    is installed, the browser draws by itself, and goes on when the kernel has ended.
    """

    def __init__(self, axes, controls, move, still, alt, alone=None):
        self.axes = axes
        self.alone = alone  # a `live.Live`: how it moves without Python; None: it does not
        self.controls = controls  # name -> ipywidget
        self.words = ipywidgets.HTML()
        self.alt = alt
        self._move, self._still = move, still
        for control in controls.values():
            control.observe(self._moved, names="value")
        self._moved()

    @property
    def state(self) -> dict:
        """Where the controls stand."""
        return {name: control.value for name, control in self.controls.items()}

    @drawn
    def _moved(self, _=None):
        self.words.value = escape(self._move(**self.state))
        if "picture" in self.__dict__:
            self.picture.value = png(self.axes)

    @functools.cached_property
    def picture(self):
        """The figure as a widget: drawn when it is first asked for, and from then on at every move."""
        return ipywidgets.Image(value=png(self.axes), format="png", width=round(self.axes.figure.get_figwidth() * 96))

    @functools.cached_property
    def box(self):
        """The widget that a notebook shows."""
        shown = live.view(self.alone, self.spec, self.controls) if self.alone else None
        return shown or ipywidgets.VBox([*self.controls.values(), self.words, self.picture])

    def spec(self) -> dict:
        """All that the explorer's module needs to run without Python, in what JSON can hold."""
        return {
            "controls": [live.described(name, control) for name, control in self.controls.items()],
            "state": self.state,
            "data": self.alone.data(),
            "alt": self.alt,
        }

    def still(self):
        """Several positions in one figure; returns its Axes."""
        return self._still()

    def _repr_mimebundle_(self, include=None, exclude=None):
        """The widget where it can run, and elsewhere the still with its alt text.

        A viewer takes the richest form it knows. nbconvert and GitHub fall back to the picture when the
        notebook holds no widget state; JupyterLab does not, so keep the state that nbclient stores.
        """
        data, metadata = bundle(self.still(), self.alt)
        # What a widget of ipywidgets 8 says of itself; widgets of ipywidgets 7, which Colab has, lack the method.
        view = {"version_major": 2, "version_minor": 0, "model_id": self.box.model_id}
        return {"application/vnd.jupyter.widget-view+json": view, **data}, metadata

    def _ipython_display_(self):
        from IPython.display import display

        display(Shown(*self._repr_mimebundle_()), Shown(description(self.alt)))


def slider(description, low, high, value):
    return ipywidgets.IntSlider(value, low, high, description=description, continuous_update=False,
                                style={"description_width": "11em"}, layout={"width": "34em"})  # fmt: skip


def powers(description, powers, value):
    return ipywidgets.SelectionSlider(options=[2**k for k in powers], value=value, description=description,
                                      continuous_update=False, style={"description_width": "11em"},
                                      layout={"width": "34em"})  # fmt: skip
