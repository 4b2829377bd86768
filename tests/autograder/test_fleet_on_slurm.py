"""A fleet on a real Slurm of four nodes on this machine: none is judged twice and none is lost, whatever ends."""

import contextlib
import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from autograder.bank import find

MISSING = [name for name in ("slurmctld", "slurmd", "sbatch", "munged", "bwrap") if not shutil.which(name)]
REASON = f"needs {', '.join(MISSING)}: apt-get install slurmctld slurmd slurm-client munge bubblewrap"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(bool(MISSING), reason=REASON),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: several nodes on one machine, one in another namespace"),
]
COURSE = Path(__file__).resolve().parents[2]
UNIT, NAME = "00_start", "start"
RIGHT = find("start.axpy/right/masked").source
WRONG = find("start.axpy/mistakes/no_mask").source
OTHER = "Another Processor 9000"
PATIENCE_S = 900

CONF = """
ClusterName=course
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d-%n.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d-%n.log
SlurmctldPort={port}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=15
KillWait=3
SchedulerParameters=sched_interval=2,batch_sched_delay=0,sched_min_interval=0
GresTypes=gpu
NodeName=n[1-4] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports}] CPUs=1 RealMemory=8000 Gres=gpu:1
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP OverSubscribe=NO
"""


class Cluster:
    """slurmctld, munged and a slurmd a node; n4 is told that its processor is another one."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.folder.chmod(0o755)
        self.daemons: dict[str, subprocess.Popen] = {}
        self.surroundings = os.environ | {"SLURM_CONF": f"{self.folder}/slurm.conf"}

    @property
    def small(self) -> Path:
        """A disk that is soon full. Nodes see what was mounted before they began."""
        return self.folder / "small"

    def start(self) -> None:
        ports = free_ports(5)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        (self.folder / "state").mkdir()
        names = {"host": socket.gethostname().split(".")[0], "folder": self.folder, "port": ports[0]}
        (self.folder / "slurm.conf").write_text(CONF.format(**names, ports=",".join(map(str, ports[1:]))))
        lines = [f"NodeName=n{n} Name=gpu File={self.folder}/gpu{n}" for n in range(1, 5)]
        (self.folder / "gres.conf").write_text("\n".join(lines))
        for n in range(1, 5):
            (self.folder / f"gpu{n}").touch()
        self.small.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "none", self.small], check=True)
        munge = [f"--{what}-file={self.folder}/munge.{what}" for what in ("key", "pid", "log", "seed")]
        self.run("munged", ["munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", *munge])
        wait(lambda: (self.folder / "munge.socket").exists())
        self.run("slurmctld", ["slurmctld", "-D"])
        processor = Path("/proc/cpuinfo").read_text().splitlines()
        told = [f"model name\t: {OTHER}" if line.startswith("model name") else line for line in processor]
        (self.folder / "cpuinfo").write_text("\n".join(told))
        for n in range(1, 5):
            self.node(n)
        wait(lambda: self.asked("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * 4)

    def node(self, n: int) -> None:
        """In a namespace of its own, which ends with all that runs in it."""
        bind = f"mount --bind {self.folder}/cpuinfo /proc/cpuinfo && " if n == 4 else ""
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self.run(f"n{n}", [*apart, "sh", "-c", f"{bind}exec slurmd -D -N n{n}"])

    def run(self, name: str, line: list[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            self.daemons[name] = subprocess.Popen(line, env=self.surroundings, stdout=out, stderr=out)

    def asked(self, *line: str) -> str:
        return subprocess.run(line, env=self.surroundings, capture_output=True, text=True, timeout=60).stdout

    def lose(self, n: int) -> None:
        """The node and all that runs on it are gone at once."""
        self.daemons[f"n{n}"].kill()
        self.daemons[f"n{n}"].wait()

    def end(self) -> None:
        self.asked("scancel", "--user=root")
        wait(lambda: not self.asked("squeue", "-h"), patience_s=60)
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()
        subprocess.run(["umount", self.small], check=True)
        shutil.rmtree(self.folder)


def free_ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def wait(until, patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not until():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.5)


@pytest.fixture(scope="module")
def cluster():
    made = Cluster()
    made.start()
    yield made
    made.end()


class Course:
    """A copy of the course, with submissions of lesson 00."""

    def __init__(self, folder: Path, cluster: Cluster):
        self.folder, self.cluster = folder, cluster
        for part in ("autograder", "course_lib", f"solutions/{UNIT}", f"notebooks/{UNIT}"):
            shutil.copytree(COURSE / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(COURSE / "nbgrader_config.py", folder)

    @property
    def verdicts(self) -> Path:
        return self.folder / "verdicts"

    def hand_in(self, student: str, answer: str | None, more: str = "") -> None:
        """more: a cell of their own, so that the text is another one."""
        nb = json.loads((COURSE / "notebooks" / UNIT / f"{NAME}.ipynb").read_text())
        for cell in nb["cells"]:
            if answer and cell["metadata"].get("nbgrader", {}).get("grade_id") == "start_axpy":
                cell["source"] = answer
        own = {"cell_type": "code", "source": more, "metadata": {}, "id": "own", "outputs": [], "execution_count": None}
        nb["cells"].insert(3, own)
        path = self.folder / "submitted" / student / UNIT / f"{NAME}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(nb))

    def run(self, *line: str) -> tuple[int, str]:
        """A program of this environment, in the course."""
        surroundings = self.cluster.surroundings | {
            "PYTHONPATH": str(self.folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            line, cwd=self.folder, env=surroundings, text=True, stdout=-1, stderr=subprocess.STDOUT, timeout=PATIENCE_S
        )
        return done.returncode, done.stdout

    def fleet(self, *words: str) -> tuple[int, str]:
        return self.run(sys.executable, "-m", "autograder", "fleet", UNIT, *words)

    def status(self) -> str:
        return self.fleet("--status")[1]

    def files(self) -> dict[str, int]:
        return {path.name: path.stat().st_mtime_ns for path in self.verdicts.glob("*.json")}

    def judged(self) -> list[str]:
        """Who was judged, once for each time, as the logs of the tasks say."""
        logs = (self.verdicts / "fleet" / UNIT).glob("*/*.log")
        lines = [line for path in logs for line in path.read_text().splitlines()]
        return [line.partition(":")[0] for line in lines if ": judged in" in line]

    def quiet(self) -> bool:
        return not self.cluster.asked("squeue", "-h")

    def marks(self) -> dict[str, float]:
        with sqlite3.connect(self.folder / "gradebook.db") as book:
            rows = book.execute(
                "select s.student_id, g.auto_score from grade g join submitted_notebook n on g.notebook_id = n.id "
                "join submitted_assignment s on n.assignment_id = s.id join base_cell c on g.cell_id = c.id "
                "where c.name = 'start_axpy_check'"
            )
            return dict(rows.fetchall())


@pytest.fixture
def course(cluster, tmp_path):
    yield Course(tmp_path, cluster)
    cluster.asked("scancel", "--user=root")
    wait(lambda: not cluster.asked("squeue", "-h"), patience_s=60)


def test_sixty_submissions_through_a_cancelled_array_and_a_lost_node(course, cluster):
    """Every third is an answer to run; the others are untouched, each with a comment of its own."""
    expected = {}
    for n in range(60):
        answer = None if n % 3 else WRONG if n % 6 else RIGHT
        expected[f"s{n:02}"] = 5.0 if answer == RIGHT else 0.0
        course.hand_in(f"s{n:02}", answer, f"# {n}")
    course.hand_in("twin", RIGHT, "# 0")
    expected["twin"] = 5.0
    status, said = course.fleet("--slurm", "partition=all,hold")
    assert status == 0 and "61 submissions of 00_start; without a verdict: 61, in 60 texts, 12 a task at most" in said
    assert "of 5 tasks" in said
    nothing = (0, "Nothing to add: what lacks a verdict is in tasks that run or wait (5).\n")
    assert course.fleet("--slurm", "partition=all") == nothing
    cluster.asked("scontrol", "release", cluster.asked("squeue", "-h", "-o", "%A").strip())
    wait(lambda: len(course.files()) >= 10)
    cluster.asked("scancel", "--user=root")
    wait(course.quiet)
    before = course.files()
    said = course.status()
    assert "0 running" in said and "0 waiting" in said and " 0 failed" not in said
    assert "CANCELLED" in said or "ended from outside" in said or "it never began" in said
    assert "The same command again submits what failed, and nothing else." in said

    status, said = course.fleet("--slurm", "partition=all")
    assert status == 0, said
    wait(lambda: any(course.files().keys() - before.keys()) and "R n1" in cluster.asked("squeue", "-h", "-o", "%t %N"))
    assert "running" in course.status() and "tasks run; about" in course.status()
    cluster.lose(1)
    wait(course.quiet)
    cluster.node(1)
    assert f"{UNIT} [####################] 61 of 61 submissions done, 0 running, 0 failed, 0 waiting" in course.status()
    assert "Every submission of 00_start has its verdicts" in course.fleet("--slurm", "partition=all")[1]
    assert {name: course.files()[name] for name in before} == before, "what was judged stays as it is"
    again = [student for student in set(course.judged()) if course.judged().count(student) > 1]
    assert not again and len(course.files()) == 60
    kept = [json.loads(path.read_text()) for path in course.verdicts.glob("*.json")]
    processors = {one["machine"]["name"] for one in kept}
    assert OTHER in processors and len(processors) == 2
    assert not [path for path in course.verdicts.rglob("*") if path.stat().st_mode & 0o077]

    times = course.files()
    assert course.run("nbgrader", "generate_assignment", UNIT)[0] == 0
    status, said = course.run("nbgrader", "autograde", UNIT, "--Autograde.only_known=True")
    assert status == 0, said
    assert course.marks() == expected and course.files() == times


def test_a_task_over_its_time_is_told_and_submitted_again_with_more(course):
    """Slurm's least limit is a minute, and cells that never end take longer, all in one batch."""
    course.hand_in("ada", RIGHT)
    for n in range(9):
        course.hand_in(f"zoe{n}", RIGHT, f"while {n} < 10: pass")
    assert course.fleet("--slurm", "time=1")[0] == 0
    wait(course.quiet)
    said, first = course.status(), course.judged()
    assert "ada" in first and "zoe8" not in first and "DUE TO TIME LIMIT" in said
    assert f" {10 - len(first)} failed" in said and f" {len(first)} of 10 submissions done" in said
    assert course.run("nbgrader", "generate_assignment", UNIT)[0] == 0
    said = course.run("nbgrader", "autograde", UNIT, "--Autograde.only_known=True")[1]
    assert "Left out, for want of a verdict: zoe" in said and {*course.marks()} == {*first}
    assert course.fleet("--slurm", "time=20")[0] == 0
    wait(course.quiet)
    assert "10 of 10 submissions done" in course.status()
    assert sorted(course.judged()) == ["ada", *(f"zoe{n}" for n in range(9))]


def fill(path: Path) -> None:
    with path.open("wb") as file, contextlib.suppress(OSError):
        while True:
            os.write(file.fileno(), bytes(4096))


def test_a_full_disk_is_told_before_anything_is_judged_and_costs_nobody(course, cluster):
    course.verdicts.symlink_to(cluster.small)
    for student in ("ada", "bob"):
        course.hand_in(student, RIGHT, f"# {student}")
    assert course.fleet("--slurm", "hold")[0] == 0
    filler = course.verdicts / "filler"
    fill(filler)
    said = course.status()
    assert "the disk is full. Mend that, and say the same command again." in said and "2 waiting" in said
    assert "Why tasks wait, in Slurm's words: JobHeldUser" in said
    assert course.fleet("--slurm", "partition=all")[0] == 2
    cluster.asked("scontrol", "release", cluster.asked("squeue", "-h", "-o", "%A").strip())
    wait(course.quiet)
    assert "2 failed" in course.status() and not course.files()
    filler.unlink()
    assert course.fleet("--slurm", "partition=all")[0] == 0
    wait(course.quiet)
    assert "2 of 2 submissions done" in course.status() and sorted(course.judged()) == ["ada", "bob"]


def test_a_task_has_its_gpu_alone_where_slurm_gave_it_one_or_the_whole_node(course, cluster):
    program = "from autograder.classroom.fleet import slurm; print(slurm.alone())"
    ask = f"cd {course.folder} && PYTHONPATH=. {sys.executable} -c '{program}'"
    told = {}
    for options in ("--mem=100", "--gres=gpu:1 --mem=100", "--exclusive --mem=100", "--oversubscribe --mem=100"):
        out = course.folder / f"out{len(told)}"
        cluster.asked("sbatch", "--wait", f"--output={out}", *options.split(), f"--wrap={ask}")
        told[options.split()[0]] = out.read_text().strip()
    assert told == {"--mem=100": "False", "--gres=gpu:1": "True", "--exclusive": "True", "--oversubscribe": "False"}
