"""Measured numbers that are kept: one JSON file a device, and the table that sets yours beside them.

A reader without a GPU still sees what the course measured. `benchmarks/results/h200.json` holds sections, each with
the machine, its versions, the date, what the measured code meant then (meaning.py) and rows of numbers. A lesson shows
its own numbers next to them with `beside`.
"""

import datetime
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.places import RESULTS, ROOT
from course_lib.table import Table, Tabular

try:
    import fcntl
except ModuleNotFoundError:  # Windows: results are shown there and not recorded
    fcntl = None

__all__ = ["FOLDER", "ROOT", "Beside", "Nothing", "beside", "gpus", "load", "memory_of", "merge", "save", "sections"]

FOLDER = RESULTS
MAIN = "h200"  # the GPU that lessons tell of
RECORD = "SPEED_OF_LIGHT_RECORD"  # set to a slug such as "h200": `beside` then writes what it shows
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


def save(section: str, rows: Sequence[Mapping[str, Any]], device_slug: str = "h200", meaning: str = "") -> Path:
    """Write one section of a device's file; the other sections stay as they are.

    `rows` are flat dictionaries of strings, numbers and None. `meaning` is that of the measured code: it tells later
    whether the numbers still hold.
    """
    _path(device_slug)  # a bad slug is refused before anything else
    machine = _machine()
    _refuse_wrong_machine(device_slug, machine)
    entry = {
        "machine": machine["name"],
        "versions": {key: machine[key] for key in ("driver", "numpy", "python", "torch", "triton")},
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "meaning": meaning,
        "rows": [{key: _plain(value) for key, value in row.items()} for row in rows],
    }
    return _update(device_slug, {section: entry})


class Nothing(dict):
    """What was never recorded: empty, so false; to ask it for rows or a date is an error that says what is missing."""

    def __init__(self, section: str, path: Path):
        super().__init__()
        self.section, self.path = section, path

    def __missing__(self, key: str) -> Any:
        lacks = f"has no section {self.section!r}" if self.path.exists() else "does not exist"
        raise LookupError(
            f"Expected {key!r} of the recorded results {self.section!r}, and nothing is recorded: {self.path} {lacks}. "
            "Install the course again, or take its whole repository: its results come with it."
        )


def load(section: str, device: str = "") -> dict:
    """The recorded section: `rows`, `machine`, `versions`, `date`, `meaning`; Nothing, which is false, without one.

    Without a device: the H200's, and where that has none, that of another GPU.
    """
    for slug in [device] if device else gpus():
        if found := _read(_path(slug)).get(section):
            return found
    return Nothing(section, _path(device or MAIN))


def gpus() -> list[str]:
    """The GPUs of which something is recorded; first the one that lessons tell of."""
    found = sorted(path.stem for path in FOLDER.glob("*.json"))
    return [MAIN, *(slug for slug in found if slug not in (MAIN, "cpu"))]


def memory_of(lesson: str, device: str = "") -> str:
    """What a lesson, "04_flash", takes of a GPU's memory, in words."""
    found = load(f"lesson{lesson[:2]}.peak", device)
    if not found:
        return "GPU memory: not measured yet; sizes follow the card's memory."
    row = found["rows"][0]
    together, held = row.get("all processes GiB"), f"held to {row['held to GiB']:g} GiB"
    if row["value"]:
        took = f"{row['value']:.1f} GiB, by a process that was {held}"
        took += f", {together:.1f} by all together" if together else ""
    else:  # the lesson's own process has nothing on a GPU
        took = f"{together:.1f} GiB of one, contexts among it, by processes that were {held} each"
    where = f"{found['machine']}, {found['date']}"
    return f"GPU memory: at most {took} ({where}); where there is more, some sizes are larger."


def sections(device: str = "h200") -> list[str]:
    """The names of everything that was recorded on a device."""
    return sorted(_read(_path(device)))


def merge(path: str | Path, names: Sequence[str], device_slug: str = "h200") -> Path:
    """Take the sections `names` from a results file that another machine wrote, such as a cluster's."""
    there = _read(Path(path))
    missing = [name for name in names if name not in there]
    if missing:
        raise KeyError(f"{path} has no section {', '.join(missing)}; it has: {', '.join(sorted(there))}")
    for name in names:
        _refuse_wrong_machine(device_slug, {"name": there[name]["machine"]})
    return _update(device_slug, {name: there[name] for name in names})


@dataclass(frozen=True)
class Beside(Tabular):
    """My numbers beside a recorded run; a notebook shows it as a table when it ends a cell."""

    section: str
    unit: str
    rows: tuple[tuple[str, float | None, float | None], ...]  # name, mine, recorded; both in `unit`
    here: str  # the machine at hand
    recorded_on: str | None  # the recorded machine and date; None when nothing was recorded, or this run was
    note: str
    alike: bool = True  # both were measured at one size: only then a ratio means something

    def ratio(self, name: str) -> float | None:
        """Mine divided by recorded, None where one of the two is missing or the sizes differ."""
        return next(self._ratio(mine, there) for row, mine, there in self.rows if row == name)

    def _ratio(self, mine: float | None, there: float | None) -> float | None:
        return mine / there if self.alike and mine is not None and there else None

    def table(self) -> Table:
        unit = f" [{self.unit}]" if self.unit else ""
        columns = (self.section, f"here{unit}", f"recorded{unit}", "here / recorded")
        rows = [
            [name, *("-" if number is None else float(number) for number in (mine, there, self._ratio(mine, there)))]
            for name, mine, there in self.rows
        ]
        shown = 2 if not self.recorded_on else 4 if self.alike else 3
        note = f"here: {self.here}\n{self.note}"
        return Table(columns[:shown], [row[:shown] for row in rows], note=note)


def beside(
    section: str,
    mine: Mapping[str, Any],
    unit: str = "ms",
    device: str = "",
    records: bool = True,
    size: str = "",
) -> Beside:
    """Set my numbers beside the recorded ones of `section`.

    With a unit of time (s, ms, us, ns) the values of `mine` are seconds or Timings; with any other unit they
    are plain numbers in that unit. With $SPEED_OF_LIGHT_RECORD=h200 set, mine are recorded first and replace
    the section: give a lesson's table a name of its own, such as "01.copy". With `records=False` they never
    do: for a section that a benchmark measures, whose rows have their numbers under the unit's name.

    `size` says at what size mine were measured, "256 x 96", where that depends on the machine. It is recorded too;
    where the recorded size is another one, the table tells both and shows no ratio. The run that records shows its
    numbers once.
    """
    machine = _machine()
    scale = SECONDS.get(unit, 1.0)
    numbers = {name: _number(value, scale) for name, value in mine.items()}
    slug = os.environ.get(RECORD) if records else None
    if slug:
        at = {"size": size} if size else {}
        save(section, [{"name": n, "value": v, "unit": unit} | at for n, v in numbers.items()], slug)
    entry = load(section, device)
    there = _recorded(entry, scale, unit)
    names = [*numbers, *(name for name in there if name not in numbers)]
    rows = tuple((name, numbers.get(name), there.get(name)) for name in names)
    own = bool(slug and entry and entry["machine"] == machine["name"])
    recorded_on = f"{entry['machine']}, {entry['date']}" if entry and not own else None
    there_size = next((row.get("size", "") for row in entry["rows"]), "") if entry else ""
    here = f"{machine['name']}, at {size}" if size else machine["name"]
    note = _note(section, entry, device or MAIN, own) + (f", at {there_size}" if there_size else "")
    return Beside(section, unit, rows, here, recorded_on, note, alike=size == there_size)


def _note(section: str, entry: Mapping, device: str, own: bool) -> str:
    if not entry:
        return f"Nothing was recorded for {section!r} on {device}: this table shows only your own numbers."
    versions = entry["versions"]
    text = "this is the recorded run" if own else "recorded"
    text += f": {entry['machine']}, {entry['date']}"
    text += f", torch {versions['torch']}, triton {versions['triton']}"
    return text


def _recorded(entry: Mapping, scale: float, unit: str) -> dict[str, float]:
    """name -> value in the asked unit; rows that carry no value are left out."""
    if not entry:
        return {}
    values = {row["name"]: (row.get("value", row.get(unit)), row.get("unit", "")) for row in entry["rows"]}
    return {name: v * SECONDS.get(own, scale) / scale for name, (v, own) in values.items() if v is not None}


def _number(value: Any, scale: float) -> float | None:
    seconds = getattr(value, "median_s", value)
    return None if seconds is None else float(seconds) / scale


def _plain(value: Any) -> Any:
    """Numbers to six digits: more is noise, and the file stays readable in a diff."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"a result of {value} is no measurement: leave it out or save None")
        return float(f"{value:.6g}")
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "item"):  # numpy and torch scalars
        return _plain(value.item())
    raise TypeError(f"a result row holds strings, numbers and None, not {type(value).__name__}")


def _machine() -> dict[str, Any]:
    from course_lib.device import machine  # here, so that reading old results never touches a device

    m = machine()
    return {key: getattr(m, key) for key in ("name", "driver", "numpy", "python", "torch", "triton")}


def _refuse_wrong_machine(slug: str, machine: Mapping[str, Any]) -> None:
    letters = re.sub(r"[^a-z0-9]", "", str(machine["name"]).lower())
    if slug != "cpu" and slug not in letters:
        raise ValueError(f"this machine is {machine['name']!r}: its numbers do not belong in {slug}.json")


def _path(slug: str) -> Path:
    if not re.fullmatch(r"[a-z0-9]+", slug):
        raise ValueError(f"a device slug is lower-case letters and digits, such as h200; got {slug!r}")
    return FOLDER / f"{slug}.json"


def _read(path: Path) -> dict:
    return json.loads(path.read_text()) if path.exists() else {}


def _update(slug: str, sections: Mapping[str, Mapping]) -> Path:
    path = _path(slug)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.parent):
        _write(path, {**_read(path), **sections})
    return path


@contextmanager
def _locked(folder: Path):
    """Two lessons that record at once must not lose each other's section."""
    if fcntl is None:
        raise OSError("Results are recorded on Linux only: this system cannot lock their folder.")
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write(path: Path, sections: Mapping[str, Mapping]) -> None:
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
        file.write(_text(sections))
    os.chmod(file.name, 0o644)  # a temporary file is private, results are for everyone
    os.replace(file.name, path)


def _text(sections: Mapping[str, Mapping]) -> str:
    """JSON with sorted keys and one row a line."""
    blocks = []
    for name in sorted(sections):
        fields = []
        for key, value in sorted(sections[name].items()):
            if key == "rows":
                rows = ",\n".join("   " + json.dumps(row, sort_keys=True) for row in value)
                fields.append(f'  "rows": [\n{rows}\n  ]' if value else '  "rows": []')
            else:
                fields.append(f"  {json.dumps(key)}: {json.dumps(value, sort_keys=True)}")
        blocks.append(f" {json.dumps(name)}: {{\n" + ",\n".join(fields) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"
