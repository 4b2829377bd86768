"""A notebook that was handed in is read in a process of its own: at most 10 s and 1 GB.

To decode a file, to parse it, to make Python of its magics and to compile its cells can each be made to take minutes
or gigabytes by a file of a few hundred kilobytes. However the process ends, its end is a reason that people can read.
This file is both sides: `taken_apart` asks, and `python -I limited.py` answers, without torch and without nbformat.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import types
import warnings
import zipfile
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS, MEMORY = 10, 1 << 30  # of the processor, and of address space
PATIENCE_S = 60  # on a machine that does other things, and for a disk that does not answer
LARGEST = 100 << 20  # bytes of a notebook; a lesson solved and executed has 0.6 MB
ANSWER = 16 << 20  # characters of what comes back; the longest lesson, solved, has 0.3 million
MARKS = ("grade", "grade_id", "locked", "points", "schema_version", "solution", "task", "cell_type", "checksum")
BOARD = "speed_of_light_board"  # in a notebook's metadata: whether its student may stand on the speed board
NO_BOARD = re.compile(r"#\s*speed board: no\b", re.IGNORECASE)  # in any cell of code, run or not
ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class Unread(ValueError):
    """The notebook cannot be read. The message ends the sentence "start.ipynb was not graded: ..."."""


def taken_apart(file: int, release: Path | None = None) -> dict:
    """The answer of the other side to an open file; Unread with a reason, and TimeoutExpired where only this machine
    can be the reason. Without a release: its `cells` alone."""
    os.lseek(file, 0, os.SEEK_SET)
    line = [sys.executable, "-I", __file__, *([str(release)] if release else [])]
    done = subprocess.run(
        line, stdin=file, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=PATIENCE_S, check=False
    )
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise Unread(f"reading it takes more than {SECONDS} s of a processor")
    if done.returncode or not done.stdout:
        raise Unread(f"the process that read it ended by itself ({done.returncode}), as with code nested too deeply")
    answer = json.loads(done.stdout)
    if "unread" in answer:
        raise Unread(answer["unread"])
    return answer


# ------------------------------------------------------------------------------------------- the other side


def main(release: str | None) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        told = json.dumps(answer(sys.stdin.buffer.read(LARGEST + 1), release))
        if len(told) > ANSWER:
            raise Unread(f"what it says has {len(told) / 1e6:.0f} MB")
    except Unread as why:
        told = json.dumps({"unread": str(why)})
    except MemoryError:
        told = json.dumps({"unread": f"reading it takes more than {MEMORY >> 30} GB of memory"})
    except RecursionError:
        told = json.dumps({"unread": "it is nested too deeply"})
    sys.stdout.write(told)


def answer(data: bytes, release: str | None) -> dict:
    if len(data) > LARGEST:
        raise Unread(f"it has more than {LARGEST >> 20} MB")
    data, unpacked = out_of_a_zip(data, Path(release).name if release else "")
    text, notes = decoded(data)
    notes = unpacked + notes
    del data
    cells = clean(cells_of(parsed(text)))
    if release is None:
        return {"cells": cells, "notes": notes}
    ours = submission()
    others = sorted(Path(release).parents[1].glob("*/*.ipynb"))
    found = ours.release_of_cells(cells, [Path(release), *others]) or Path(release)
    if found != Path(release):
        raise Unread(f"it is the notebook of {found.parent.name}, and this lesson is {Path(release).parent.name}")
    released = json.loads(found.read_text(encoding="utf-8"))
    repaired, found = ours.taken(released, {"cells": cells})
    for cell in found.cells:
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            compile(cell.source, cell.name, "exec", dont_inherit=True)
    read_once(found.cells)
    no_board = any(NO_BOARD.search(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    repaired["metadata"] = {**repaired["metadata"], BOARD: not no_board}
    return {"notebook": repaired, "notes": [*notes, *found.notes], "code": found.as_data()}


def submission() -> types.ModuleType:
    """`autograder.referee.submission` without what `import autograder` brings: torch would take the whole gigabyte."""
    bare = types.ModuleType("autograder")
    bare.__path__ = [str(ROOT / "autograder")]
    sys.modules["autograder"] = bare
    from autograder.referee import submission as found

    return found


def read_once(cells: tuple) -> None:
    """The referee reads the text of the cells without any limit, once for each exercise: what would take it minutes
    ends here. What it says is of no use yet, since it depends on the exercise."""
    from autograder.referee import reading

    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        reading.suspicious(cells, methods=False)  # with them it would take torch, and two seconds
        reading.replacing(cells)


def out_of_a_zip(data: bytes, name: str) -> tuple[bytes, list[str]]:
    """The notebook of this name, or the only one, in a zip; other bytes as they are. And what was done."""
    if not data.startswith(b"PK\x03\x04"):
        return data, []
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = [one for one in archive.namelist() if one.endswith(".ipynb") and not hidden(one)]
            chosen = [one for one in names if one.rpartition("/")[2] == name] or names
            if len(chosen) != 1:
                held = ", ".join(names[:5]) or "none"
                raise Unread(f"a zip was handed in, and not one notebook of it can be told to be the answer ({held})")
            with archive.open(chosen[0]) as file:
                unpacked = file.read(LARGEST + 1)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, OSError, EOFError, zlib.error) as error:
        raise Unread(f"a zip was handed in, and it cannot be unpacked ({error})") from None
    if len(unpacked) > LARGEST:
        raise Unread(f"its zip holds more than {LARGEST >> 20} MB")
    return unpacked, [f"A zip was handed in; {chosen[0]} was taken out of it. Hand in the notebook itself."]


def hidden(name: str) -> bool:
    """What a Mac, an editor or Jupyter puts beside a file."""
    return any(part.startswith((".", "__")) for part in name.split("/"))


def decoded(data: bytes) -> tuple[str, list[str]]:
    """The text of a file in whatever encoding, and what a person should know about that."""
    encoding = json.detect_encoding(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        encoding = "latin-1"
        text = data.decode(encoding)
    if encoding in ("utf-8", "utf-8-sig"):
        return text, []
    return text, [f"The file is not UTF-8; it was read as {encoding}. Save it as UTF-8 the next time."]


def parsed(text: str) -> dict:
    try:
        return json.loads(text)
    except ValueError as error:
        if not text.strip():
            raise Unread("it is empty") from None
        if marks := submission().MERGE.search(text):
            line = text.count("\n", 0, marks.start()) + 1
            raise Unread(
                f"line {line} is the mark of a merge that was not finished ({marks[0].strip()}); keep one side of each "
                "and remove the marks"
            ) from None
        where = f", line {error.lineno}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        what = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise Unread(f"it is no JSON ({what}{where}), as when a file was cut off or edited by hand") from None


def cells_of(data: dict) -> list[dict]:
    """Of nbformat 4, or of 3, which had worksheets and headings."""
    try:
        if data.get("nbformat") == 3:
            found = [cell for sheet in data["worksheets"] for cell in sheet["cells"]]
            return [{**cell, "source": cell.get("input", cell.get("source", ""))} for cell in found]
        return [cell for cell in data["cells"] if isinstance(cell, dict)]
    except (KeyError, TypeError, AttributeError):
        raise Unread("it is JSON, but no notebook: it has no cells") from None


def clean(cells: list[dict]) -> list[dict]:
    """Type, text and name of each cell, and nothing else: no outputs, no attachments. An id that is missing, not valid
    or there twice is replaced."""
    made, ids = [], set()
    for number, cell in enumerate(cells):
        source, metadata = cell.get("source", ""), cell.get("metadata", {})
        parts = source if isinstance(source, list) else [source]
        marks = metadata.get("nbgrader") if isinstance(metadata, dict) else None
        marks = marks if isinstance(marks, dict) else {}
        kept = {name: value for name, value in marks.items() if name in MARKS and isinstance(value, str | bool | int)}
        known = cell.get("id")
        if not (isinstance(known, str) and ID.fullmatch(known)) or known in ids:
            known = f"read-{number}"
        ids.add(known)
        made.append(
            {
                "cell_type": cell.get("cell_type") if cell.get("cell_type") in ("code", "raw") else "markdown",
                "id": known,
                "metadata": {"nbgrader": kept} if kept else {},
                "source": "".join(part for part in parts if isinstance(part, str)),
            }
        )
    return made


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    warnings.simplefilter("ignore")  # compiling warns, once for each place
    main(*sys.argv[1:] or [None])
