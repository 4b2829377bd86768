"""What was handed in is read once, in a process with limits, and never changed: whatever its name, size or form."""

import json
import os
import resource
import shutil
import subprocess
import sys
import zipfile
from datetime import datetime
from pathlib import Path

import nbformat
import pytest
from nbgrader import converters
from nbgrader.apps import api, autogradeapp
from nbgrader.coursedir import CourseDirectory

from autograder.bank import find
from autograder.classroom import grading, handed_in, limited
from autograder.referee.submission import Submission

COURSE = Path(__file__).resolve().parents[2]
UNIT, NAME = "00_start", "start"
RELEASES = COURSE / "notebooks" / UNIT


def _answered() -> str:
    """Lesson 00 with a right answer, as a file."""
    notebook = json.loads((RELEASES / f"{NAME}.ipynb").read_text())
    for cell in notebook["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "start_axpy":
            cell["source"] = find("start.axpy/right/masked").source
    return json.dumps(notebook)


ANSWERED = _answered()


@pytest.fixture
def folder(tmp_path):
    """Where a student hands in."""
    path = tmp_path / "submitted" / "eve" / UNIT
    path.mkdir(parents=True)
    return path


class Taken:
    """What `take` made of a folder."""

    def __init__(self, submission: Path):
        self.folder = submission.parents[2] / "taken" / submission.parent.name / UNIT
        handed_in.take(submission, RELEASES, self.folder)
        self.notebook = nbformat.read(self.folder / f"{NAME}.ipynb", as_version=4)
        nbformat.validate(self.notebook)
        self.said = " ".join(self.notebook.metadata[handed_in.NOTES])
        self.code = Submission.of_data(self.notebook.metadata[handed_in.CODE])

    @property
    def has_answer(self) -> bool:
        part = "tl.program_id(0).to(tl.int64) * BLOCK"
        shown = any(part in cell.source for cell in self.notebook.cells)
        assert shown == any(part in cell.source for cell in self.code.cells)
        return shown


def put(folder: Path, notebook: str | bytes | dict, name: str = f"{NAME}.ipynb") -> Path:
    data = json.dumps(notebook) if isinstance(notebook, dict) else notebook
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return folder / name


def contents(folder: Path) -> list:
    return [(p, p.read_bytes() if p.is_file() and not p.is_symlink() else None) for p in sorted(folder.rglob("*"))]


def full(folder: Path) -> Path:
    """A folder that nothing can be renamed to."""
    folder.mkdir()
    (folder / "x").write_text("x")
    return folder


# ------------------------------------------------------------------------------------------- odd and heavy notebooks


def spent() -> float:
    """The seconds of a processor that this process and those it waited for have had: other work beside it adds none."""
    return sum(os.times()[:4])


def odd(change):
    notebook = json.loads(ANSWERED)
    change(notebook)
    return notebook


def heading(nb):
    """nbformat 3, where a heading has a level: nbformat makes as many signs."""
    cells = [{"cell_type": "heading", "level": 3_000_000_000, "source": "x", "metadata": {}}]
    for one in nb.pop("cells"):
        one["input"] = one["source"]
        cells.append(one)
    nb.update({"worksheets": [{"cells": cells}], "nbformat": 3, "nbformat_minor": 0})


def shows(*outputs):
    return lambda nb: next(one for one in nb["cells"] if one["cell_type"] == "code").update(outputs=[*outputs])


ODD = {
    "many tags": lambda nb: nb["cells"][0]["metadata"].update(tags=[*range(8000), "a"]),
    "heading": heading,
    "metadata": lambda nb: nb["cells"][0]["metadata"].update(more=[{}] * 200_000),
    "source of numbers": lambda nb: nb["cells"].insert(
        0, {**nb["cells"][0], "id": "x", "source": ["a"] * 90_000 + [1]}
    ),
    "no source": lambda nb: nb["cells"].insert(0, {"cell_type": "code", "metadata": {}}),
    "a number for a source": lambda nb: (nb["cells"][0].update(source=5), nb.update(nbformat_minor=99)),
    "no outputs": lambda nb: [one.pop("outputs", None) for one in nb["cells"]],
    "an id with a sign": lambda nb: nb["cells"].insert(0, {**nb["cells"][0], "id": "#" * 70}),
    "an extra key": lambda nb: nb["cells"][0].update(mine=1),
    "one id for all": lambda nb: [one.update(id="same") for one in nb["cells"]],
    "thousands of cells": lambda nb: nb["cells"].extend({**nb["cells"][0], "id": f"x{n}"} for n in range(4000)),
    "a cell that is none": lambda nb: nb["cells"].insert(0, 5),
    "marks that are none": lambda nb: nb["cells"][0]["metadata"].update(nbgrader=[1]),
    "no format": lambda nb: (nb.pop("nbformat"), nb.pop("nbformat_minor"), nb.pop("metadata")),
    "44 MB of outputs": shows({"output_type": "stream", "name": "stdout", "text": "x" * (44 << 20)}),
    "80,000 empty outputs": shows(*[{}] * 80_000),
    "50 MB attached": lambda nb: nb["cells"][0].update(attachments={"a.png": {"image/png": "x" * (50 << 20)}}),
}


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_or_heavy_notebook_is_read_in_seconds_and_its_answer_kept(kind, folder):
    put(folder, odd(ODD[kind]))
    before, start = contents(folder), spent()
    taken = Taken(folder)
    assert spent() - start < 8.0
    assert taken.has_answer and "was not graded" not in taken.said
    assert contents(folder) == before, "what was handed in stays as it came"
    assert (taken.folder / f"{NAME}.ipynb").stat().st_size < 300_000


ENCODED = {
    "a mark at the beginning": ("utf-8-sig", ""),
    "UTF-16": ("utf-16", "read as utf-16"),
    "UTF-16 without a mark": ("utf-16-le", "read as utf-16-le"),
    "UTF-32": ("utf-32", "read as utf-32"),
    "Windows": ("cp1252", "read as latin-1"),
}


@pytest.mark.parametrize("kind", ENCODED)
def test_a_notebook_in_another_encoding_is_read_and_told(kind, folder):
    encoding, said = ENCODED[kind]
    words = odd(lambda nb: nb["cells"].insert(3, {"cell_type": "markdown", "id": "x", "source": "gr\xf6\xdfer"}))
    put(folder, json.dumps(words, ensure_ascii=False).encode(encoding))
    taken = Taken(folder)
    assert taken.has_answer and said in taken.said and bool(said) == bool(taken.said)
    assert "gr\xf6\xdfer" in [cell.source for cell in taken.notebook.cells]


WITHOUT_CELLS = '{"cells": ['
NO_NOTEBOOK = {
    "empty": ("", "it is empty"),
    "cut off": (ANSWERED[:1000], "no JSON"),
    "merged": (json.dumps(json.loads(ANSWERED), indent=1).replace(' "cells"', "<<<<<<< mine\n", 1), "merge"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 99, "no JSON"),
    "a list": ("[1, 2]", "no notebook"),
    "no cells": ("{}", "no notebook"),
    "objects": ("{}," * 2_000_000, "no JSON"),
    "millions of cells": (WITHOUT_CELLS + "{}," * 20_000_000 + "{}]}", "1 GB of memory"),
    "lists": ("[" * 5_000_000, "nested too deeply"),
    "too large": (b" " * (limited.LARGEST + 9), "more than 100 MB"),
}


@pytest.mark.parametrize("kind", NO_NOTEBOOK)
def test_what_is_no_notebook_becomes_the_empty_release_and_waits_with_the_true_reason(kind, folder):
    data, reason = NO_NOTEBOOK[kind]
    put(folder, data)
    start = spent()
    taken = Taken(folder)
    assert spent() - start < 15.0
    assert "was not graded: " in taken.said and reason in taken.said and not taken.has_answer
    assert taken.notebook.metadata[handed_in.PERSON] == taken.said
    assert "static_assert(False" in "".join(cell.source for cell in taken.notebook.cells), "the empty release"


COSTLY = {
    "calls without brackets": ", a b\n" * 10_000,
    "a call and much else": ", f a\n" + "x = ((\n" * 18_000,
    "equal hashes": "x = {" + ",".join(f"({n * (2**61 - 1)},):0" for n in range(1, 5_000)) + "}",
    "tuples": "x = {" + ",".join(f"({n},{n}):0" for n in range(10_000)) + "}",
    "assignments": "\n".join(f"a{n} = a{n - 1}" for n in range(1, 8_000)),
    "assignments that lead to a kernel": "a0 = axpy\n" + "\n".join(f"a{n} = a{n - 1}" for n in range(1, 8_000)),
    "brackets": "(" * 90_000,
    "minus signs": "-" * 100_000 + "1",
}


LONG = "assignments that lead to a kernel", "tuples", "equal hashes"


@pytest.mark.parametrize("kind", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in COSTLY])
def test_code_that_is_costly_to_read_ends_within_its_limits(kind, folder):
    new = {"cell_type": "code", "id": "x", "metadata": {}, "source": COSTLY[kind]}
    put(folder, odd(lambda nb: nb["cells"].insert(3, new)))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    taken = Taken(folder)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < limited.SECONDS + 2
    assert taken.has_answer or "takes more than" in taken.said or "ended by itself" in taken.said


SPENDS = {
    "time": ("while True: pass", "more than 1 s of a processor"),
    "memory": ("bytes(1 << 31)", "more than 1 GB of memory"),
    "itself": ("os.abort()", "ended by itself"),
    "patience": ("import time; time.sleep(60)", "a person should look"),
}


@pytest.mark.parametrize("kind", SPENDS)
def test_however_the_process_that_reads_ends_there_is_a_reason(kind, folder, tmp_path, monkeypatch):
    does, reason = SPENDS[kind]
    text = Path(limited.__file__).read_text().replace("SECONDS, MEMORY = 10,", "SECONDS, MEMORY = 1,")
    spends = tmp_path / "limited.py"
    spends.write_text(text.replace("    text, notes = decoded(data)\n", f"    {does}\n"))
    monkeypatch.setattr(limited, "__file__", str(spends))
    monkeypatch.setattr(limited, "SECONDS", 1)
    monkeypatch.setattr(limited, "PATIENCE_S", 2 if kind == "patience" else 30)
    put(folder, ANSWERED)
    taken = Taken(folder)
    assert reason in taken.said and not taken.has_answer
    assert taken.notebook.metadata[handed_in.PERSON] == taken.said, "a person decides"


def test_the_process_that_reads_holds_no_torch_and_no_nbformat():
    held = "print(*{name.split('.')[0] for name in sys.modules})"
    line = f"import sys, types; sys.path.insert(0, {str(limited.ROOT / 'autograder/classroom')!r})\n"
    line += f"sys.path.insert(1, {str(limited.ROOT)!r})\nimport limited\n"
    kernel = find("start.axpy/right/masked").source  # beside kernels methods of tensors are looked for
    line += f"cell = limited.submission().Cell('start_axpy', {kernel!r})\nlimited.read_once((cell,))\n{held}"
    done = subprocess.run([sys.executable, "-I", "-c", line], capture_output=True, text=True, check=True)
    assert "IPython" in done.stdout.split() and not {"torch", "nbformat", "numpy"} & set(done.stdout.split())


def test_a_fault_of_ours_costs_nobody_a_grade_and_goes_to_a_person(folder, monkeypatch):
    def fails(*_):
        raise KeyError("surprise")

    put(folder, ANSWERED)
    monkeypatch.setattr(limited, "taken_apart", fails)
    taken = Taken(folder)
    assert taken.notebook.metadata[handed_in.PERSON] and "a person should look" in taken.said
    assert not taken.has_answer, "what nobody could look at is not shown"


# ------------------------------------------------------------------------------------------- odd and hostile folders


def link(path: Path, to: Path | str) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.is_dir():
        path.rmdir()
    path.symlink_to(to)


NAMES_OF_BYTES = os.fsdecode(b"L\xf6sung\x1b[2J")
# what is done to a folder -> a part of what is told
GRADED = {
    "alone": (lambda f: None, ""),
    "a folder for damaged ones": (lambda f: full(f / f"{NAME}.damaged"), "start.damaged (a folder)"),
    "a folder for originals": (lambda f: full(f / f"{NAME}.original"), "start.original (a folder)"),
    "a folder like a notebook": (lambda f: (full(f / "x.ipynb"), full(f / "x.damaged")), "x.ipynb (a folder)"),
    "a name that is not UTF-8": (lambda f: put(f, ANSWERED, f"{NAMES_OF_BYTES}.ipynb"), "L?sung"),
    "a link beside it": (lambda f: link(f / "book.html", "/etc/passwd"), "book.html (a link)"),
    "a linked folder beside it": (lambda f: link(f / "deep", "/etc"), "deep (a link)"),
    "a pipe beside it": (lambda f: os.mkfifo(f / "pipe.ipynb"), "pipe.ipynb (a pipe)"),
    "a page beside it": (lambda f: put(f, "<script>", "figure.html"), "not looked at: figure.html"),
    "hundreds of files": (lambda f: [put(f, "x", f"f{n}") for n in range(300)], "and 280 more"),
}


@pytest.mark.parametrize("kind", GRADED)
def test_a_notebook_counts_whatever_lies_beside_it_and_none_of_that_goes_further(kind, folder):
    change, said = GRADED[kind]
    put(folder, ANSWERED)
    change(folder)
    before = contents(folder)
    taken = Taken(folder)
    assert taken.has_answer and said in taken.said and bool(said) == bool(taken.said)
    assert taken.said.isprintable() and contents(folder) == before
    assert [path.name for path in taken.folder.iterdir()] == [f"{NAME}.ipynb"]


def neighbour(folder: Path) -> Path:
    """Somebody who has the answer."""
    other = folder.parents[1] / "ada" / UNIT
    other.mkdir(parents=True)
    return put(other, ANSWERED)


NOT_GRADED = {
    "nothing": (lambda f: None, "The folder held: nothing."),
    "another file": (lambda f: put(f, "words", "lesson.pdf"), "The folder held: lesson.pdf."),
    "a link": (lambda f: link(f / f"{NAME}.ipynb", neighbour(f)), "start.ipynb (a link)"),
    "a link and no place": (
        lambda f: (link(f / f"{NAME}.ipynb", neighbour(f)), full(f / f"{NAME}.damaged")),
        "start.ipynb (a link)",
    ),
    "a dangling link": (lambda f: link(f / f"{NAME}.ipynb", "/nowhere"), "start.ipynb (a link)"),
    "a link under another name": (lambda f: link(f / "my.ipynb", neighbour(f)), "my.ipynb (a link)"),
    "a folder": (lambda f: full(f / f"{NAME}.ipynb"), "start.ipynb (a folder)"),
    "a pipe": (lambda f: os.mkfifo(f / f"{NAME}.ipynb"), "start.ipynb (a pipe)"),
    "two under other names": (lambda f: [put(f, ANSWERED, n) for n in ("a.ipynb", "b.ipynb")], "None of a.ipynb, b.ip"),
    "a linked folder": (lambda f: link(f, neighbour(f).parent), "In place of a folder with a notebook, a link"),
    "a folder that is nowhere": (lambda f: link(f, "/nowhere"), "In place of a folder with a notebook, a link"),
    "a file for a folder": (lambda f: (f.rmdir(), f.write_text(ANSWERED)), "In place of a folder with a notebook, a"),
    "a linked student": (
        lambda f: (f.rmdir(), link(f.parent, neighbour(f).parents[1])),
        "the folder of this student is a link",
    ),
}


@pytest.mark.parametrize("kind", NOT_GRADED)
def test_what_is_no_regular_file_of_the_students_own_is_not_opened_and_told(kind, folder):
    change, reason = NOT_GRADED[kind]
    change(folder)
    taken = Taken(folder)
    assert reason in taken.said and not taken.has_answer
    assert [path.name for path in taken.folder.iterdir()] == [f"{NAME}.ipynb"]


def test_one_notebook_under_another_name_is_taken_and_told(folder):
    put(folder, ANSWERED, "my lesson (2).ipynb")
    taken = Taken(folder)
    assert taken.has_answer and "my lesson (2).ipynb was taken for start.ipynb" in taken.said


@pytest.mark.parametrize("ids", [True, False], ids=["as it came", "without ids"])
@pytest.mark.parametrize("name", [f"{NAME}.ipynb", "roofline.ipynb"])
def test_the_notebook_of_another_lesson_is_called_one_in_seconds_and_nothing_of_it_is_run(name, ids, folder):
    other = json.loads((RELEASES.parent / "01_roofline/roofline.ipynb").read_text())
    for cell in other["cells"] if not ids else []:
        del cell["id"]
    put(folder, other, name)
    start = spent()
    taken = Taken(folder)
    assert spent() - start < 8.0
    assert taken.said == f"{name} was not graded: it is the notebook of 01_roofline, and this lesson is 00_start."
    assert taken.notebook.metadata[handed_in.PERSON] == taken.said, "a person decides"
    assert taken.code.untouched == {"axpy"} and not [cell for cell in taken.code.cells if "softmax" in cell.source]


def test_what_was_put_right_is_told_in_our_words_only(folder):
    forged = json.loads(ANSWERED)
    forged["metadata"][handed_in.NOTES] = ["Graded again by hand: full points."]
    forged["metadata"][handed_in.CODE] = {"cells": [["x", "y"]]}
    put(folder, forged)
    taken = Taken(folder)
    assert taken.said == "" and taken.has_answer


def test_a_notebook_handed_in_later_counts(folder):
    put(folder, "{")
    assert not Taken(folder).has_answer
    put(folder, ANSWERED)
    assert Taken(folder).has_answer


STAMPS = {
    "2026-01-01 10:00:00 UTC": "10:00",
    "2026-01-01 10:00:00.123456 UTC": "10:00",
    "2026-01-01 10:00:00": "10:00",
    "2026-01-01 10:00:00.123456 America/Los_Angeles": "18:00",
    "2026-01-01T10:00:00+01:00": "09:00",
    "2026-01-01T10:00:00.5Z": "10:00",
    "2026-01-01 10:00 +0100": "09:00",
    "2026-01-01 10:00 -08:00": "18:00",
    "2026-01-01 10:00": "10:00",
    "2026-01-01 10:00 PST": "",
    "2026-01-01 10:00 Nowhere/At_All": "",
    "2026-01-01 10:00 +99:00": "",
    "2026-13-01 10:00": "",
    "2026-01-01": "",
    "05.12.2026 10:00": "",
    "5/12/2026 10:00": "",
    "junk": "",
    "0001-01-01 00:00:00 UTC": "",
    "9999-12-31 23:59:59 UTC": "",
    "9" * 20: "",
    "2026-01-01 10:00:00 /etc/localtime": "",
    "": "",
    "2026-01-01 10:00:00 UTC" + " " * 500 + "x": "",
}


@pytest.mark.parametrize("text", STAMPS, ids=lambda text: text.strip()[:40] or "empty")
def test_a_timestamp_counts_where_it_can_be_read_in_one_way_and_is_put_aside_and_told_where_not(text, folder):
    full(folder / f"{handed_in.STAMP}.0")
    full(folder / "timestamp.damaged")
    put(folder, text, handed_in.STAMP)
    put(folder, ANSWERED)
    taken = Taken(folder)
    assert taken.has_answer and (taken.folder / handed_in.STAMP).exists() == bool(STAMPS[text])
    if STAMPS[text]:
        assert f"{handed_in.time_of(folder):%H:%M}" == STAMPS[text] == f"{handed_in.time_of(taken.folder):%H:%M}"
    said = handed_in.put_aside_bad_stamp(folder)
    assert bool(said) != bool(STAMPS[text]) and handed_in.time_of(folder) == handed_in.time_of(taken.folder)
    assert (folder / handed_in.STAMP).exists() == bool(STAMPS[text]) != (folder / f"{handed_in.STAMP}.1").exists()


def test_nbgrader_and_formgrader_read_times_as_we_do_and_through_no_link(folder, monkeypatch):
    put(folder, "2026-01-01 10:00 +0100", handed_in.STAMP)
    os.mkfifo(full(folder.parents[2] / "elsewhere") / handed_in.STAMP)
    link(folder.parents[1] / "mallory" / UNIT, folder.parents[2] / "elsewhere")
    for patched in ((CourseDirectory, "get_existing_timestamp"), (api.NbGraderAPI, "get_submitted_timestamp")):
        monkeypatch.setattr(*patched, None)
    for patched in (api, autogradeapp):
        monkeypatch.setattr(patched, "Autograde", converters.Autograde)
    grading.install()
    course = CourseDirectory(root=str(folder.parents[2]))
    lists = api.NbGraderAPI(course)
    for student, when in (("eve", datetime(2026, 1, 1, 9)), ("mallory", None)):
        assert lists.get_submitted_timestamp(UNIT, student) == when
        assert course.get_existing_timestamp(course.format_path("submitted", student, UNIT)) == when


NO_STAMP = {
    "pipe": os.mkfifo,
    "a gigabyte of zeros": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 30),
    "link": lambda path: path.symlink_to("/dev/zero"),
    "folder": full,
}


@pytest.mark.parametrize("kind", NO_STAMP)
def test_whatever_is_called_timestamp_stops_nobody(kind, folder):
    put(folder, ANSWERED)
    NO_STAMP[kind](folder / handed_in.STAMP)
    start = spent()
    taken = Taken(folder)
    handed_in.put_aside_bad_stamp(folder)
    assert spent() - start < 5.0
    assert taken.has_answer and not (taken.folder / handed_in.STAMP).exists()
    assert not (folder / handed_in.STAMP).exists(), "nbgrader's pages read it too"


# ------------------------------------------------------------------------------------------- kills

KILLED = """
import json, os, shutil, signal, sys
from pathlib import Path
from autograder.classroom import handed_in
submission, releases, to = map(Path, sys.argv[1:])
WRITES = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree", "subprocess.Popen")

def steps_until(last):
    '''Take it in a process that is killed before its step number `last`; whether it came to its end.'''
    child = os.fork()
    if child == 0:
        done = 0
        def count(event, arguments):
            nonlocal done
            if event in WRITES:
                done += 1
                if done == last:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(count)
        handed_in.take(submission, releases, to)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0

def seen():
    return {str(p.relative_to(to)): p.read_text() for p in sorted(to.rglob("*"))} if to.exists() else None

handed_in.take(submission, releases, to)
old = seen()
(submission / "start.ipynb").write_text((submission / "start.ipynb").read_text().replace("eve was here", "eve is here"))
handed_in.take(submission, releases, to)
new = seen()
assert old != new and len(new) == 2
for before in (None, old):
    killed = 0
    while True:
        shutil.rmtree(to, ignore_errors=True)
        if before:
            to.mkdir()
            for name, text in before.items():
                (to / name).write_text(text)
        ended = steps_until(killed + 1)
        assert seen() in (None, before, new), "wholly or not at all"
        handed_in.take(submission, releases, to)
        assert seen() == new
        assert sorted(p.name for p in to.parent.iterdir()) == [to.name], "nothing else is left"
        if ended:
            break
        killed += 1
    print(killed)
"""


@pytest.mark.slow
def test_killed_at_every_step_and_begun_again_the_same_is_read(folder):
    words = {"cell_type": "markdown", "id": "x", "metadata": {}, "source": "eve was here"}
    put(folder, odd(lambda nb: nb["cells"].insert(3, words)))
    put(folder, "2026-01-01 10:00:00 UTC", handed_in.STAMP)
    to = folder.parents[2] / "taken" / "eve" / UNIT
    line = [sys.executable, "-c", KILLED, str(folder), str(RELEASES), str(to)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, cwd=COURSE)
    assert done.returncode == 0, done.stderr
    fresh, again = map(int, done.stdout.split())
    assert 5 < fresh < again, "a second time the folder of the first has to go"


def test_settings_whose_beginning_fails_end_the_command(tmp_path):
    shutil.copy(COURSE / "nbgrader_config.py", tmp_path)
    for room in ("autograder", "course_lib", "notebooks"):
        (tmp_path / room).symlink_to(COURSE / room)
    put_there = tmp_path / "submitted" / "eve" / UNIT
    put_there.mkdir(parents=True)
    broken = "def take(*_):\n    raise UnicodeEncodeError('utf-8', '', 0, 1, 'x')\n"
    broken += "from autograder.classroom import handed_in\nhanded_in.take = take\n"
    (tmp_path / "sitecustomize.py").write_text(broken)
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", "autograde", UNIT],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{tmp_path}:{COURSE}"}, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.returncode != 0 and "UnicodeEncodeError" in done.stderr
    assert not (tmp_path / "autograded").exists()


# ------------------------------------------------------------------------------------------- a zip


def zipped(path: Path, **files: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)


def test_a_zip_with_the_notebook_is_unpacked_and_that_is_told(folder):
    zipped(
        folder / "Lösung 1.zip", **{"x/start.ipynb": ANSWERED, "__MACOSX/x/._start.ipynb": "", "x/notes.txt": "hello"}
    )
    taken = Taken(folder)
    assert taken.has_answer and "A zip was handed in; x/start.ipynb was taken out of it." in taken.said
    assert "Also handed in" not in taken.said


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"a.ipynb": "{}", "b.ipynb": "{}"}, "not one notebook of it can be told to be the answer (a.ipynb, b.ipynb)"),
        ({"answers.pdf": "x"}, "not one notebook of it can be told to be the answer (none)"),
        ({"start.ipynb": "{"}, "it is no JSON"),
    ],
)
def test_a_zip_without_one_notebook_is_told(folder, files, says):
    zipped(folder / "answers.zip", **files)
    assert says in Taken(folder).said


def test_a_broken_zip_two_zips_and_a_huge_one_are_told(folder):
    (folder / "a.zip").write_bytes(b"PK\x03\x04 and no more")
    assert "it cannot be unpacked" in Taken(folder).said
    zipped(folder / "b.zip", **{"start.ipynb": ANSWERED})
    assert "2 zips were handed in (a.zip, b.zip), so none was graded." in Taken(folder).said
    (folder / "a.zip").unlink()
    zipped(folder / "b.zip", **{"start.ipynb": " " * (limited.LARGEST + 10)})
    assert "its zip holds more than 100 MB" in Taken(folder).said


def test_a_notebook_beside_a_zip_is_the_one_that_counts(folder):
    (folder / "start.ipynb").write_text(ANSWERED)
    zipped(folder / "old.zip", **{"start.ipynb": "{"})
    taken = Taken(folder)
    assert taken.has_answer and "Also handed in, and not looked at: old.zip." in taken.said
