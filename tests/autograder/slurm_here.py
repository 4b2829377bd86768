"""Slurm with four nodes on this machine, and a course that hands its submissions to it."""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

MISSING = [name for name in ("slurmctld", "slurmd", "sbatch", "munged", "bwrap") if not shutil.which(name)]
REASON = f"needs {', '.join(MISSING)}: apt-get install slurmctld slurmd slurm-client munge bubblewrap"
NEEDS = [
    pytest.mark.slow,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(bool(MISSING), reason=REASON),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: several nodes on one machine, one in another namespace"),
]
COURSE = Path(__file__).resolve().parents[2]
UNIT, NAME = "00_start", "start"
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


def notebook(release: Path, answers: Mapping[str, str | None], more: str = "") -> str:
    """A released notebook with these answers in it; what is None stays as it was released.
    more: a cell of their own, so that the text is another one."""
    nb = json.loads(release.read_text())
    for cell in nb["cells"]:
        if answer := answers.get(cell["metadata"].get("nbgrader", {}).get("grade_id")):
            cell["source"] = answer
    own = {"cell_type": "code", "source": more, "metadata": {}, "id": "own", "outputs": [], "execution_count": None}
    nb["cells"].insert(3, own)
    return json.dumps(nb)


class Course:
    """A copy of what grading needs of the course, with submissions of lesson 00."""

    rooms = ("autograder", "course_lib", f"solutions/{UNIT}", f"notebooks/{UNIT}")
    files = ("nbgrader_config.py",)

    def __init__(self, folder: Path, cluster: Cluster):
        self.folder, self.cluster = folder, cluster
        for room in self.rooms:
            shutil.copytree(COURSE / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
        for file in self.files:
            shutil.copy(COURSE / file, folder)

    @property
    def verdicts(self) -> Path:
        return self.folder / "verdicts"

    def hand_in(self, student: str, answer: str | None, more: str = "") -> None:
        path = self.folder / "submitted" / student / UNIT / f"{NAME}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(notebook(COURSE / "notebooks" / UNIT / f"{NAME}.ipynb", {"start_axpy": answer}, more))

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

    def ours(self, *words: str) -> tuple[int, str]:
        return self.run(sys.executable, "-m", "autograder", *words)

    def fleet(self, *words: str) -> tuple[int, str]:
        return self.ours("fleet", UNIT, *words)

    def status(self) -> str:
        return self.fleet("--status")[1]

    def kept(self) -> dict[str, int]:
        """Verdict files, and when each was written."""
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
