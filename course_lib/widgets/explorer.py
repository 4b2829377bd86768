"""Sliders above a figure, and a still of it where nobody can move a slider."""

from html import escape

import ipywidgets

from course_lib.plots.house import Shown, bundle, description, drawn, png

__all__ = ["Explorer", "powers", "slider"]


class Explorer:
    """Sliders above a figure, and one sentence that says what is seen.

    `controls["size"].value = 20` moves it from Python as a hand does in the browser.
    """

    def __init__(self, axes, controls, move, still, alt):
        self.axes = axes
        self.controls = controls  # name -> ipywidget
        self.words = ipywidgets.HTML()
        self.picture = ipywidgets.Image(format="png", width=round(axes.figure.get_figwidth() * 96))
        self.box = ipywidgets.VBox([*controls.values(), self.words, self.picture])
        self.alt = alt
        self._move, self._still = move, still
        for control in controls.values():
            control.observe(self._moved, names="value")
        self._moved()

    @drawn
    def _moved(self, _=None):
        self.words.value = escape(self._move(**{name: c.value for name, c in self.controls.items()}))
        self.picture.value = png(self.axes)

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
