"""The sandbox keeps a program in, as root and as an ordinary user."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autograder.referee import sandbox

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
COURSE = Path(__file__).resolve().parents[2]


def inside(program: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        sandbox.command([sys.executable, "-c", program], **options), capture_output=True, text=True, timeout=60
    )


def test_a_sandbox_starts_here():
    sandbox.require()


def test_the_program_is_process_1_with_another_uid_and_no_rights():
    status = inside("print(open('/proc/self/status').read())").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Pid"] == "1"
    assert fields["Uid"].split() == ["65534"] * 4
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0


def test_each_sandbox_has_a_user_namespace_of_its_own():
    look = "import os; print(os.readlink('/proc/self/ns/user'))"
    outside = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout
    assert outside != inside(look).stdout != ""


def test_there_is_no_network():
    program = "import socket; s = socket.socket(); s.settimeout(2); s.connect(('127.0.0.1', 22))"
    assert "Error" in inside(program).stderr
    assert inside("print(open('/proc/net/dev').read().count(':'))").stdout.strip() == "1"  # loopback, down


@pytest.mark.parametrize(
    "place",
    ["solutions", "tests", "autograder", "notebooks", "course_lib/kernels/softmax.py", "gradebook.db", ".git"],
)
def test_answers_grades_and_oracles_cannot_be_seen(place):
    assert inside(f"import os; print(os.path.exists({str(COURSE / place)!r}))").stdout.strip() == "False"


def test_the_library_that_lessons_import_is_there():
    assert inside("from course_lib.roofline import Work; print(Work(1.0, 2.0).intensity)").stdout.strip() == "0.5"


@pytest.mark.parametrize("place", ["/usr", "/etc", str(COURSE / "course_lib"), sys.prefix, "/"])
def test_nothing_but_the_temporary_folder_can_be_written(place):
    assert "Error" in inside(f"open({place!r} + '/mark', 'w').write('x')").stderr


def test_the_temporary_folder_is_private_and_limited():
    limits = sandbox.Limits(tmp_bytes=1 << 20)
    done = inside("open('/tmp/big', 'wb').write(bytes(1 << 22))", limits=limits)
    assert "No space left" in done.stderr
    assert not Path("/tmp/big").exists()


@pytest.mark.parametrize(
    ("limits", "program", "said"),
    [
        (sandbox.Limits(file_bytes=1 << 16), "open('/tmp/f', 'wb').write(bytes(1 << 20))", "File too large"),
        (sandbox.Limits(memory_bytes=1 << 30), "bytearray(1 << 31)", "MemoryError"),
        (sandbox.Limits(open_files=16), "[open('/dev/null') for _ in range(20)]", "Too many open files"),
    ],
    ids=["file size", "memory", "open files"],
)
def test_a_limit_holds(limits, program, said):
    program = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + program
    assert said in inside(program, limits=limits).stderr


def test_a_fork_bomb_ends_at_the_limit():
    program = """
import os, time
for made in range(200):
    try:
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
    except BlockingIOError:
        break
print(made)
"""
    assert int(inside(program, limits=sandbox.Limits(processes=40)).stdout) < 60


def test_without_bubblewrap_grading_is_refused_with_the_way_to_install_it(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    sandbox.require.cache_clear()
    with pytest.raises(sandbox.NoSandbox, match="apt-get install bubblewrap"):
        sandbox.require()
    sandbox.require.cache_clear()
