"""A run of `nbgrader autograde` that is killed, doubled, refused or cut short ends with the same gradebook."""

import functools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import pytest
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import notebook_hash

from autograder.bank import find
from autograder.classroom import cohort, collecting, grading, handed_in, trying
from autograder.classroom.taken import TAKEN
from autograder.referee.submission import Submission
from course_lib.places import environment

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
COURSE = Path(__file__).resolve().parents[2]
UNIT, NAME = "00_start", "start"
RIGHT = find("start.axpy/right/masked").source
WRONG = find("start.axpy/mistakes/no_mask").source
COHORT = {"ada": RIGHT, "bob": WRONG, "cleo": None, "dan": RIGHT}
MARKS = {"ada": 5.0, "bob": 0.0, "cleo": 0.0, "dan": 5.0}


def notebook(answer: str | None, path: Path) -> Path:
    """A submission of lesson 00; without an answer, an untouched one."""
    nb = json.loads((COURSE / "notebooks" / UNIT / f"{NAME}.ipynb").read_text())
    for cell in nb["cells"]:
        if answer and cell["metadata"].get("nbgrader", {}).get("grade_id") == "start_axpy":
            cell["source"] = answer
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(nb))
    return path


@pytest.fixture
def course(tmp_path):
    """A copy of the course with four submissions."""
    for part in ("autograder", "course_lib", "solutions/" + UNIT, "notebooks/" + UNIT):
        shutil.copytree(COURSE / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(COURSE / "nbgrader_config.py", tmp_path)
    for student, answer in COHORT.items():
        notebook(answer, tmp_path / "submitted" / student / UNIT / f"{NAME}.ipynb")
    return tmp_path


def started(course: Path, *words: str, **environment: str) -> subprocess.Popen:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(course)} | environment
    return subprocess.Popen(
        ["nbgrader", *words], cwd=course, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def run(course: Path, *words: str, **environment: str) -> tuple[int, str]:
    with started(course, *words, **environment) as child:
        said = child.communicate(timeout=300)[0]
    return child.returncode, said


def prepared(course: Path) -> Path:
    status, said = run(course, "generate_assignment", UNIT)
    assert status == 0, said
    return course


def marks(course: Path) -> dict[str, float]:
    with sqlite3.connect(course / "gradebook.db") as book:
        rows = book.execute(
            "select s.student_id, g.auto_score from grade g join submitted_notebook n on g.notebook_id = n.id "
            "join submitted_assignment s on n.assignment_id = s.id join base_cell c on g.cell_id = c.id "
            "where c.name = 'start_axpy_check'"
        )
        return dict(rows.fetchall())


def test_without_bubblewrap_autograde_is_refused_and_runs_nothing(course):
    mark = course / "it_ran"
    notebook(f"open({str(mark)!r}, 'w')", course / "submitted/eve" / UNIT / f"{NAME}.ipynb")
    tools = course / "bin"
    tools.mkdir()
    (tools / "nbgrader").symlink_to(Path(sys.executable).parent / "nbgrader")
    status, said = run(course, "autograde", UNIT, PATH=f"{tools}:{Path(sys.executable).parent}")
    assert status != 0 and "apt-get install bubblewrap" in said
    assert not mark.exists() and not (course / "autograded").exists()


@pytest.mark.slow
def test_settings_that_cannot_be_loaded_end_the_command_before_stock_nbgrader_takes_over(course):
    """Without them nbgrader would execute the notebooks, with the instructor's rights."""
    (course / "autograder/classroom/report.py").write_text("import no_such_package\n")
    status, said = run(course, "autograde", UNIT)
    assert status != 0 and "no_such_package" in said and "nothing was done" in said
    assert not (course / "autograded").exists()


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")  # nbgrader's own
def test_odd_hand_ins_are_told_in_a_line_each(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")  # nbgrader calls alembic by name
    folder = {student: tmp_path / "submitted" / student / UNIT for student in ("ada", "bob", "cleo", "dan", "eve")}
    for student in ("ada", "eve"):
        notebook(RIGHT, folder[student] / f"{NAME}.ipynb")
    untidy = json.loads((folder["ada"] / f"{NAME}.ipynb").read_text())
    untidy["cells"] = [cell for cell in untidy["cells"] if "start_axpy_threads" not in json.dumps(cell["metadata"])]
    (folder["ada"] / f"{NAME}.ipynb").write_text(json.dumps(untidy))
    folder["bob"].mkdir(parents=True)
    shutil.copy(COURSE / "notebooks/01_roofline/roofline.ipynb", folder["bob"] / f"{NAME}.ipynb")
    notebook(RIGHT, folder["cleo"] / "start (1).ipynb")
    folder["dan"].mkdir(parents=True)
    with zipfile.ZipFile(folder["dan"] / "mine.zip", "w") as packed:
        packed.write(folder["eve"] / f"{NAME}.ipynb", f"{NAME}.ipynb")
    where = {"root": str(tmp_path), "db_url": f"sqlite:///{tmp_path}/gradebook.db", "assignment_id": UNIT}
    where["release_directory"] = str(COURSE / "notebooks")
    for force in (False, True):  # the second time nothing is read anew
        cohort.begin(CourseDirectory(**where), TAKEN, force)
        said = [line for line in capsys.readouterr().err.splitlines() if line.partition(": ")[0] in folder]
        assert [line.partition(": ")[0] for line in said] == ["bob", "cleo", "dan"]
        parts = ("it is the notebook of 01_roofline", "was taken for start", "A zip was handed in")
        assert all(part in line for part, line in zip(parts, said, strict=True))


def test_a_timestamp_that_is_none_is_told_once(tmp_path, capsys):
    folder = notebook(RIGHT, tmp_path / "submitted/ada" / UNIT / f"{NAME}.ipynb").parent
    (folder / handed_in.STAMP).write_text("2026-12-02 08:00 PST")
    where = {"root": str(tmp_path), "release_directory": str(COURSE / "notebooks"), "assignment_id": UNIT}
    for _ in range(2):
        cohort.taken_in(CourseDirectory(**where), TAKEN)
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("ada: timestamp.txt says '2026-12-02 08:00 PST', which is no time: it is timestamp.txt.0")


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_refuses_the_run(course):
    (course / "verdicts").write_text("a file where the folder should be")
    status, said = run(course, "autograde", UNIT)
    assert status != 0 and "refused" in said and "verdicts" in said


@pytest.mark.slow
def test_two_graders_on_one_gradebook(course):
    """The second is refused with a reason; the first one's marks are complete."""
    prepared(course)
    first = started(course, "autograde", UNIT)
    lock, until = course / "verdicts/.grading", time.monotonic() + 60
    while not (lock.exists() and lock.read_text()) and time.monotonic() < until:
        time.sleep(0.05)
    status, said = run(course, "autograde", UNIT)
    assert status != 0 and f"process {first.pid}" in said
    told = first.communicate(timeout=300)[0]
    assert first.returncode == 0, told
    assert marks(course) == MARKS


@pytest.mark.slow
def test_a_run_killed_at_any_point_and_begun_again_ends_with_the_same_gradebook(course):
    prepared(course)
    kills = 0
    for wait_for in (
        "verdicts/handed_in/bob/.*",
        "verdicts/*.seed",
        "autograded/ada/*/*.ipynb",
        "verdicts/*.json",
        "autograded/cleo/*/*.ipynb",
    ):
        child, until = started(course, "autograde", UNIT), time.monotonic() + 120
        while child.poll() is None and not list(course.glob(wait_for)) and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(0.1 * kills)  # a little further each time
        kills += child.poll() is None
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert kills >= 4
    status, said = run(course, "autograde", UNIT)
    assert status == 0, said
    assert marks(course) == MARKS
    assert "s in all" in said  # the end of the progress


def test_collect_follows_no_link_and_nothing_in_the_exchange_stops_it_for_others(course, monkeypatch, request):
    monkeypatch.chdir(course)  # and back at the end
    exchange = course.with_name(f"{course.name}-exchange")
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", exchange, course / "submitted"]))  # too deep
    first = "2026-01-01 10:00:00.000000 UTC"
    inbound = exchange / "speed-of-light/inbound"
    inbound.mkdir(parents=True)
    shutil.rmtree(course / "submitted")
    secret = course / "secret.txt"
    secret.write_text("the instructor's own")

    def handed(student, when=first):
        folder = inbound / f"{student}+{UNIT}+{when}+00"
        notebook(RIGHT, folder / f"{NAME}.ipynb")
        (folder / "timestamp.txt").write_text(when)
        (folder / "data").mkdir()
        (folder / "data/numbers.csv").write_text("1,2")
        return folder

    for student in ("ada", "zoe"):
        handed(student)
    os.mkfifo(handed("bob") / "pipe")
    links = handed("cleo")
    (links / "notes.txt").symlink_to(secret)
    (links / "course").symlink_to(course / "solutions")
    places = {student: inbound / f"{student}+{UNIT}+{first}+00" for student in ("dan", "dora", "dirk", "dave", "doug")}
    places["dan"].symlink_to(course / "elsewhere")
    (course / "elsewhere").mkdir()
    os.mkfifo(course / "elsewhere/timestamp.txt")
    places["dora"].symlink_to("/nowhere")
    places["dirk"].symlink_to(places["dirk"])
    os.mkfifo(places["dave"])
    places["doug"].write_text("a file")
    for odd in ("a*", "\x1b[31mred", "two\nlines"):
        handed(odd)
    (inbound / f"ada+{UNIT}+2026-02-01\x1b[31m+00").mkdir()
    (handed("eve") / "large").write_bytes(bytes(200 << 20))
    os.chdir(handed("fay"))
    for _ in range(1500):  # deeper than recursion
        os.mkdir("x")
        os.chdir("x")
    os.chdir(course)
    (inbound / f"ada+{UNIT}+junk+00").mkdir()
    (handed("gil") / "timestamp.txt").write_text("junk")
    (inbound / f"fay+{UNIT}+{first}+00/timestamp.txt").write_text("junk")
    for folder in ("submitted", "submitted/hal"):
        (course / folder).mkdir(0o700)
    handed("ida")
    (course / "submitted/ida").touch(0o600)
    (course / "submitted/hal" / UNIT).symlink_to(handed("hal"))  # of an earlier version
    status, said = run(course, "collect", UNIT)
    assert status == 0 and "\x1b" not in said and "two\nlines" not in said, said
    for name, why in {"dan": "a link", "dora": "a link", "dirk": "a link", "dave": "a pipe", "doug": "a file"}.items():
        assert f"Left out: '{name}+{UNIT}+{first}+00' in the exchange: it is {why}, and no folder" in said
    assert f"/ida+{UNIT}+{first}+00' could not be collected whole: NotADirectoryError" in said
    assert f"Left out: '\\x1b[31mred+{UNIT}+" in said and f"Left out: 'a*+{UNIT}+" in said
    there = {path.parent.name: path for path in (course / "submitted").glob(f"*/{UNIT}")}
    assert set(there) == {"ada", "bob", "cleo", "eve", "fay", "gil", "hal", "zoe"}
    for path in there.values():
        assert json.dumps(RIGHT) in (path / f"{NAME}.ipynb").read_text() and not path.is_symlink()
        assert (path / "data/numbers.csv").read_text() == "1,2"
    assert (there["cleo"] / "notes.txt").is_symlink() and (there["cleo"] / "course").is_symlink()
    assert not (there["bob"] / "pipe").exists() and not (there["eve"] / "large").exists()
    assert not (there["gil"] / "timestamp.txt").exists() and not (there["fay"] / "timestamp.txt").exists()
    assert "gil: timestamp.txt says 'junk', which is no time" in said
    closed = [course / "submitted", *(course / "submitted").iterdir(), there["ada"] / f"{NAME}.ipynb"]
    assert not [path for path in closed if path.stat().st_mode & 0o077]
    for student in ("zoe", "dan", "fay"):
        notebook(WRONG, handed(student, "2026-01-02 10:00:00.000000 UTC") / f"{NAME}.ipynb")
    status, said = run(course, "collect", UNIT, "--update")
    assert status == 0, said
    for student in ("zoe", "dan", "fay"):
        assert json.dumps(WRONG) in (course / "submitted" / student / UNIT / f"{NAME}.ipynb").read_text()


def test_of_a_file_that_grows_while_it_is_collected_no_more_is_copied_than_was_counted(tmp_path, monkeypatch):
    (tmp_path / "from").mkdir()
    (tmp_path / "from/x.bin").write_bytes(b"1" * 1000)
    real = os.open

    def grown(path, *words, **named):
        if path == "x.bin":
            (tmp_path / "from/x.bin").write_bytes(b"2" * 5000)
        return real(path, *words, **named)

    monkeypatch.setattr(os, "open", grown)
    assert [*collecting.copied(tmp_path / "from", tmp_path / "to", [], 3000, 3000)] == []
    assert (tmp_path / "to/x.bin").read_bytes() == b"2" * 1000


def test_feedback_is_released_to_those_who_submitted_and_who_did_not_is_named(course):
    page, secrets = (
        "<p>feedback</p>",
        {"ada": "a" * 128, "bob": None, "cleo": "../x", "dan": "d" * 128, "eve": "e" * 128},
    )
    for student, secret in secrets.items():
        submission, feedback = (course / step / student / UNIT for step in ("submitted", "feedback"))
        notebook(RIGHT, submission / f"{NAME}.ipynb")
        feedback.mkdir(parents=True)
        (feedback / f"{NAME}.html").write_text(page)
        for folder, hour in ((submission, 11 if student == "dan" else 10), (feedback, 10)):
            if secret:
                (folder / "timestamp.txt").write_text(f"2026-01-01 {hour}:00:00.000000 UTC")
        if secret:
            (submission / "submission_secret.txt").write_text(secret)
    (course / "submitted/eve" / UNIT / "submission_secret.txt").unlink()
    (course / "submitted/eve" / UNIT / "submission_secret.txt").symlink_to(
        course / "submitted/ada" / UNIT / "submission_secret.txt"
    )
    exchange = course.with_name(f"{course.name}-exchange")
    exchange.mkdir()
    status, said = run(course, "release_feedback", UNIT)
    assert status == 0, said
    released = list((exchange / "speed-of-light/feedback").iterdir())
    assert [path.name for path in released] == [f"{notebook_hash(secret='a' * 128, notebook_id=NAME)}.html"]
    assert released[0].read_text() == page and released[0].stat().st_mode & 0o777 == 0o644
    for student in ("bob", "cleo", "eve"):
        assert f"{student} did not hand in through the exchange" in said
    assert "dan handed in again" in said


def test_without_an_exchange_release_feedback_says_so_and_where_the_pages_are(course):
    status, said = run(course, "release_feedback", UNIT)
    assert status == 1 and "contact your instructor" not in said
    assert f"this course has no exchange: {course}-exchange does not exist." in said
    assert f"puts the pages into feedback/<student>/{UNIT}/: give each student theirs." in said


# ------------------------------------------------------------------------------------------- without nbgrader


@pytest.mark.parametrize("groupshared", [False, True])
def test_solutions_of_a_checkout_are_closed_by_the_commands_that_close_what_lies_open(tmp_path, groupshared):
    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions").chmod(0o755)
    cohort.close_to_others(CourseDirectory(root=str(tmp_path), source_directory="solutions", groupshared=groupshared))
    assert (tmp_path / "solutions").stat().st_mode & 0o777 == (0o755 if groupshared else 0o700)


def test_a_course_that_others_can_enter_is_named_with_what_closes_it(capsys):
    with tempfile.TemporaryDirectory(dir="/tmp") as above:  # pytest's own folders are closed
        course = Path(above) / "course"
        course.mkdir()
        for outer, inner, is_open in ((0o755, 0o755, True), (0o711, 0o711, True), (0o700, 0o755, False)):
            Path(above).chmod(outer)
            course.chmod(inner)
            cohort.close_to_others(CourseDirectory(root=str(course)))
            said = capsys.readouterr().err
            assert bool(said) == is_open and (not is_open or said.endswith(f"To close it: chmod 700 {course}\n"))
            assert course.stat().st_mode & 0o777 == inner, "it stays as it is"
        Path(above).chmod(0o755)
        course.chmod(0o700)
        cohort.close_to_others(CourseDirectory(root=str(course)))
        assert not capsys.readouterr().err


def test_only_one_run_at_a_time_and_a_killed_one_lets_go(tmp_path):
    hold = f"from autograder.classroom.cohort import only_one; from pathlib import Path; import time\n\
with only_one(Path({str(tmp_path / 'lock')!r})): print('held', flush=True); time.sleep(60)"
    other = subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True, cwd=COURSE)
    assert other.stdout.readline() == "held\n"
    with pytest.raises(BlockingIOError, match=str(other.pid)), cohort.only_one(tmp_path / "lock"):
        pass
    other.kill()
    other.communicate()
    for _ in range(2):  # and who held it to its end lets go too
        with cohort.only_one(tmp_path / "lock"):
            pass


def test_autograde_and_a_fleet_read_what_was_handed_in_one_after_the_other(course, monkeypatch):
    inside, most = [], []

    def take(submission, releases, to):
        inside.append(to)
        most.append(len(inside))
        time.sleep(0.05)
        inside.remove(to)

    monkeypatch.setattr(handed_in, "take", take)
    where = {"source_directory": "solutions", "release_directory": "notebooks", "assignment_id": UNIT}
    read = functools.partial(cohort.taken_in, CourseDirectory(root=str(course), **where), TAKEN)
    with ThreadPoolExecutor() as pool:
        assert [{*run.result()} for run in [pool.submit(read), pool.submit(read)]] == [{*COHORT}] * 2
    assert most == [1] * 2 * len(COHORT)


@pytest.mark.parametrize("left", ["sanitized", "torn", "nothing"])
def test_what_a_killed_run_left_is_dropped_and_what_is_finished_stays(left, course):
    releases, graded = course / "notebooks" / UNIT, course / "autograded/ada" / UNIT
    path = notebook(RIGHT, graded / f"{NAME}.ipynb")
    if left == "torn":
        path.write_text(path.read_text()[:2000])
    if left == "nothing":
        path.unlink()
    cohort.drop_unfinished(graded, releases)
    assert not graded.exists()
    nb = json.loads(notebook(RIGHT, graded / f"{NAME}.ipynb").read_text())
    for cell in nb["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "start_axpy_check":
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "5"}]
    path.write_text(json.dumps(nb))
    cohort.drop_unfinished(graded, releases)
    assert path.exists()


@pytest.fixture
def chosen(course, monkeypatch):
    """Whom a run would grade, where everybody was graded who has a time here: (of the grading, of the hand-in)."""
    monkeypatch.setenv("PATH", environment()["PATH"])  # nbgrader calls alembic by name
    monkeypatch.chdir(course)

    def run(times: dict[str, tuple[str, str]], **settings) -> list[str]:
        for student, both in times.items():
            folders = course / "autograded" / student / UNIT, course / "submitted" / student / UNIT
            for folder, hour in zip(folders, both, strict=True):
                notebook(COHORT.get(student, WRONG), folder / f"{NAME}.ipynb")
                if hour:
                    (folder / "timestamp.txt").write_text(f"2026-01-01 {hour}:00:00 UTC")
        where = {"source_directory": "solutions", "release_directory": "notebooks", "assignment_id": UNIT}
        app, found = grading.Autograde(CourseDirectory(root=str(course), **where), **settings), []

        def grades(app):
            found.extend(filter(functools.partial(app.init_destination, UNIT), submitted(app)))
            assert cohort.progress.total == len(found)

        monkeypatch.setattr(grading.converters.Autograde, "start", grades)
        monkeypatch.setattr(cohort, "is_finished", lambda path: True)
        app.start()
        assert cohort.progress is None
        return sorted(found)

    def submitted(app):
        return [path.parent.name for path in course.glob(f"{app.coursedir.submitted_directory}/*/{UNIT}")]

    return run


def test_a_hand_in_of_another_time_is_graded_whether_it_is_later_earlier_or_without_one(chosen, course, capsys):
    times = {"ada": ("10", "11"), "bob": ("10", "09"), "cleo": ("10", ""), "dan": ("", "10")}
    assert chosen(times | {"eve": ("10", "10"), "fay": ("", "")}) == ["ada", "bob", "cleo", "dan"]
    said = capsys.readouterr().err
    assert "is not what lies there now" not in said
    assert [line for line in said.splitlines() if "stays" in line] == [
        "cleo: without timestamp.txt, so the earlier time stays: 2026-01-01 10:00:00 UTC"
    ]
    assert not (course / "autograded/bob" / UNIT).exists() and (course / "autograded/eve" / UNIT).exists()


@pytest.mark.slow
def test_another_text_without_another_time_is_named_and_with_force_graded(chosen, course, capsys):
    times = {"ada": ("", ""), "bob": ("", "")}
    assert chosen(times) == ["cleo", "dan"]
    notebook(RIGHT, course / "submitted/bob" / UNIT / f"{NAME}.ipynb")
    assert chosen({}) == ["cleo", "dan"]
    said = capsys.readouterr().err
    assert "What was graded is not what lies there now: bob\n" in said
    again = f"nbgrader autograde {UNIT} --force"
    assert f"To grade one of them: {again} --student=bob. To grade everybody: {again}\n" in said
    assert chosen({}, force=True) == ["ada", "bob", "cleo", "dan"]


def test_an_exercise_is_graded_anew_for_those_who_are_named_and_did_not_hand_in_since(chosen, course):
    chosen({"ada": ("", ""), "bob": ("", ""), "cleo": ("10", "10"), "dan": ("", "")})
    notebook(RIGHT, course / "submitted/bob" / UNIT / f"{NAME}.ipynb")
    (course / "submitted/cleo" / UNIT / "timestamp.txt").write_text("2026-01-01 11:00:00 UTC")
    assert chosen({}, force=True, again=["ada", "bob", "cleo"]) == ["ada"]


@pytest.mark.slow
def test_only_known_leaves_out_whoever_lacks_a_verdict_whatever_the_folder_is_called(chosen, course, monkeypatch):
    """nbgrader's own list of names to leave out is taken apart at commas."""
    notebook(RIGHT, course / "submitted/M\u00fcller, \u00c4nne" / UNIT / f"{NAME}.ipynb")
    monkeypatch.setattr(grading, "without_verdicts", lambda lesson: ["M\u00fcller, \u00c4nne", "ada"])
    assert chosen({}, only_known=True) == ["bob", "cleo", "dan"]
    assert "M\u00fcller, \u00c4nne" in chosen({})


# ------------------------------------------------------------------------------------------- rehearsal


def rehearse(path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess:
    line = [sys.executable, "-m", "autograder", "try", str(path), *words]
    return subprocess.run(line, cwd=COURSE, env=os.environ | environment, capture_output=True, text=True, timeout=120)


def test_a_rehearsal_tells_points_and_what_was_put_right(tmp_path):
    path = notebook(RIGHT, tmp_path / f"{NAME}.ipynb")
    nb = json.loads(path.read_text())
    for cell in nb["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "start_axpy":
            cell["metadata"] = {}
    path.write_text(json.dumps(nb))
    done = rehearse(path)
    assert done.returncode == trying.FULL, done.stderr
    assert "put right: The cell start_axpy had lost its name" in done.stdout
    assert "5/5  start.axpy: 7 of 7 cases right.\n    5/5  of what was judged here" in done.stdout
    assert "4  points for 2 answers in words" in done.stdout
    assert "still empty: start_axpy_floor, start_axpy_threads" in done.stdout


@pytest.mark.slow
def test_a_rehearsal_of_a_mistake_names_it_and_says_so_by_its_exit_status(tmp_path):
    done = rehearse(notebook(WRONG, tmp_path / f"{NAME}.ipynb"))
    assert done.returncode == trying.NOT_FULL
    assert "0/5" in done.stdout and "Give both loads and the store" in done.stdout


def test_a_rehearsal_without_a_sandbox_needs_the_flag(tmp_path):
    path = notebook(RIGHT, tmp_path / f"{NAME}.ipynb")
    refused = rehearse(path, PATH="/nowhere")
    assert refused.returncode == trying.NOT_TRIED
    assert "apt-get install bubblewrap" in refused.stderr and "--unsafe-no-sandbox" in refused.stderr


@pytest.mark.slow
def test_a_rehearsal_without_a_sandbox_is_loud(tmp_path):
    path = notebook(RIGHT, tmp_path / f"{NAME}.ipynb")
    done = rehearse(path, "--unsafe-no-sandbox", PATH="/nowhere")
    assert done.returncode == trying.FULL
    assert "WITHOUT A SANDBOX" in done.stderr and trying.UNPROTECTED in done.stdout


@pytest.mark.slow
def test_a_rehearsal_without_a_sandbox_survives_a_crash(tmp_path):
    done = rehearse(notebook("import os\nos.abort()", tmp_path / f"{NAME}.ipynb"), "--unsafe-no-sandbox")
    assert done.returncode == trying.NOT_FULL and "the process ended" in done.stdout


def test_a_lesson_under_another_name_is_known_by_its_cells(tmp_path):
    path = notebook(RIGHT, tmp_path / "my answers.ipynb")
    assert trying.release_for(path, None, trying.read(path)).name == f"{NAME}.ipynb"


def test_the_cells_of_a_notebook_say_its_lesson_before_its_name_does(tmp_path):
    path = tmp_path / f"{NAME}.ipynb"
    shutil.copy(trying.RELEASES / "01_roofline/roofline.ipynb", path)
    assert trying.release_for(path, None, trying.read(path)).name == "roofline.ipynb"
    with pytest.raises(trying.CannotTry, match="it is the notebook of 01_roofline, and this lesson is 00_start"):
        trying.release_for(path, UNIT, trying.read(path))


def test_a_rehearsal_sends_no_controls_to_the_terminal(capsys):
    row = trying.Row(0.0, 5.0, False, ["raised \x1b[2J", "then \x1b]0;x\x07 \u202e"], ["waits \x1b[2J"])
    trying.told(Path("my.ipynb"), Submission((), notes=("\x1b[31m",)), iter([row]))
    said = capsys.readouterr().out
    assert "raised" in said and "then" in said and "[31m" in said and "waits" in said
    assert not set(said) & set("\x1b\x07\u202e")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("start.ipynb", "{", "is no notebook that can be read: it is no JSON"),
        ("start.ipynb", None, "No such file"),
        ("mine.ipynb", nbformat.writes(nbformat.v4.new_notebook()), "which lesson is this"),
    ],
    ids=["damaged", "not there", "of no lesson"],
)
def test_a_rehearsal_that_cannot_be_says_what_to_do(name, text, said, tmp_path, capsys):
    path = tmp_path / name
    if text:
        path.write_text(text)
    status = trying.main(trying.argparse.Namespace(notebook=path, lesson=None, unsafe_no_sandbox=False, seed=20))
    assert status == trying.NOT_TRIED and said in capsys.readouterr().err
