"""The sandbox keeps a program in, as root and as an ordinary user."""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autograder.inside import seccomp
from autograder.referee import sandbox, watchdog

pytestmark = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")
COURSE = Path(__file__).resolve().parents[2]
WATCHDOG = COURSE / "autograder/referee/watchdog.py"
ORDINARY = 12345

# Runs a program in a sandbox with a watchdog, and says what the watchdog said. It loads these modules by their paths:
# importing the package would import torch, as a user who may not read this environment.
OUTSIDE = """
import importlib.util, json, subprocess, sys, threading
def load(path):
    spec = importlib.util.spec_from_file_location(path.rpartition("/")[2][:-3], path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
where, program, limits, watched = json.loads(sys.argv[1])
sandbox, watchdog = load(where[0]), load(where[1])
limits = sandbox.Limits(**limits)
child = subprocess.Popen(sandbox.command([sys.executable, "-I", "-c", program], limits=limits),
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
dog = watchdog.Watchdog(child.pid, limits.memory) if watched else None
out, err = child.communicate(timeout=60)
print(json.dumps({"out": out, "err": err, "rc": child.returncode, "said": dog.said if dog else ""}))
"""


def readable_python() -> str | None:
    """A Python that a user without rights can start."""
    for path in (os.path.realpath(sys.executable), f"/usr/bin/python3.{sys.version_info.minor}", "/usr/bin/python3"):
        above = (
            [p for p in Path(path).resolve().parents if not p.stat().st_mode & 0o001] if os.path.exists(path) else [1]
        )
        if not above:
            return path
    return None


USERS = ["me"]
if os.geteuid() == 0 and readable_python() and shutil.which("setpriv"):
    USERS.append("ordinary")
everyone = pytest.mark.parametrize("user", USERS)


def inside(program: str, user: str = "me", watched: bool = False, **limits):
    """What a program wrote and how it ended, in a sandbox that root or an ordinary user made."""
    said = json.dumps([[str(sandbox.__file__), str(WATCHDOG)], program, limits, watched])
    line = [sys.executable, "-c", OUTSIDE, said]
    if user == "ordinary":
        become = ["setpriv", f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups", "--inh-caps=-all"]
        line = [*become, readable_python(), *line[1:]]
    done = subprocess.run(line, capture_output=True, text=True, timeout=90, cwd="/", env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_sandbox_starts_here():
    sandbox.require()


@everyone
def test_the_program_is_process_1_with_another_uid_and_no_rights(user):
    status = inside("print(open('/proc/self/status').read())", user)["out"]
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Pid"] == "1"
    assert fields["Uid"].split() == ["65534"] * 4
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0
    assert fields["Seccomp"] == "2"


@everyone
def test_each_sandbox_has_a_user_namespace_of_its_own(user):
    look = "import os; print(os.readlink('/proc/self/ns/user'))"
    outside = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stdout
    assert outside != inside(look, user)["out"] != ""


@everyone
def test_there_is_no_network(user):
    with socket.create_server(("127.0.0.1", 0)) as outside:  # somebody listens, but not there
        place = outside.getsockname()
        socket.create_connection(place, 2).close()
        program = f"import socket; socket.create_connection({place}, 2)"
        assert "Error" in inside(program, user)["err"]
    only_loopback = inside("print(open('/proc/net/dev').read().count(':'))", user)["out"]
    assert only_loopback.strip() == "1"


HIDDEN = """solutions tests notebooks benchmarks gradebook.db .git course_lib/kernels/softmax.py autograder/exercise.py
autograder/exercises autograder/judging autograder/referee autograder/call autograder/classroom autograder/bank"""


@everyone
def test_answers_grades_and_oracles_cannot_be_seen(user):
    places = [place for place in HIDDEN.split() if place != "gradebook.db"]
    assert [place for place in places if not (COURSE / place).exists()] == []
    program = f"import os; print([p for p in {HIDDEN.split()} if os.path.exists({str(COURSE)!r} + '/' + p)])"
    assert inside(program, user)["out"].strip() == "[]"


@everyone
def test_of_the_course_there_are_its_library_without_its_answers_and_the_room_inside(user):
    program = f"""
import os, sys
course = {str(COURSE)!r}
print(sorted(name for name in os.listdir(course) if not sys.prefix.startswith(os.path.join(course, name))))
print([os.listdir(os.path.join(course, "course_lib", name)) for name in ("kernels", "parallel")])
print(sorted(os.listdir(os.path.join(course, "autograder"))))
"""
    assert (COURSE / "course_lib/kernels").is_dir() and (COURSE / "course_lib/parallel").is_dir()
    found = inside(program, user)["out"].splitlines()
    assert found == ["['autograder', 'course_lib']", "[[], []]", "['__init__.py', 'inside']"]


def test_of_several_gpus_one_has_a_device_node(monkeypatch):
    pytest.importorskip("triton.backends.nvidia.driver")
    monkeypatch.setattr("triton.backends.nvidia.driver.libcuda_dirs", lambda: ["/usr/lib"])
    line = sandbox.command(["true"], gpu=3)
    bound = {line[i + 2] for i, word in enumerate(line) if word in ("--dev-bind", "--dev-bind-try")}
    assert bound == {"/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}
    assert not [word for word in sandbox.command(["true"]) if "nvidia" in word]


def test_the_library_that_lessons_import_is_there():
    line = sandbox.command(
        [sys.executable, "-c", "from course_lib.roofline import Work; print(Work(1.0, 2.0).intensity)"]
    )
    assert subprocess.run(line, capture_output=True, text=True).stdout.strip() == "0.5"


@everyone
def test_whoever_asks_for_the_name_of_the_user_gets_one(user):
    """torch 2.11's compiler does, for its folder, and would fail."""
    assert inside("import getpass; print(getpass.getuser())", user)["out"] == "nobody\n"


@everyone
def test_nothing_but_the_temporary_folders_can_be_written(user):
    program = """
import os
for folder, below, _ in os.walk("/"):
    below[:] = [b for b in below if os.path.join(folder, b) not in ("/proc", "/sys") and not os.path.islink(folder)]
    if folder.count("/") > 4:
        below.clear()
    try:
        open(folder + "/mark", "w").close()
        print(folder)
    except OSError:
        pass
"""
    found = inside(program, user)["out"].split()
    assert {"/tmp", "/dev/shm"} <= set(found)
    assert [f for f in found if not f.startswith(("/tmp", "/dev/shm"))] == []


def test_the_temporary_folder_is_private_and_limited():
    done = inside("open('/tmp/big', 'wb').write(bytes(1 << 22))", tmp_bytes=1 << 20)
    assert "No space left" in done["err"]
    assert not Path("/tmp/big").exists()


@pytest.mark.parametrize(
    ("limits", "program", "said"),
    [
        ({"file_bytes": 1 << 16}, "open('/tmp/f', 'wb').write(bytes(1 << 20))", "File too large"),
        ({"file_bytes": 1 << 16}, "import os; os.ftruncate(os.memfd_create('m'), 1 << 20)", "File too large"),
        ({"memory_bytes": 1 << 30}, "bytearray(1 << 31)", "MemoryError"),
        ({"open_files": 16}, "[open('/dev/null') for _ in range(20)]", "Too many open files"),
    ],
    ids=["file size", "memory file size", "address space", "open files"],
)
def test_a_limit_holds(limits, program, said):
    program = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + program
    assert said in inside(program, **limits)["err"]


FORKS = """
import os, time
for made in range(200):
    try:
        if os.fork() == 0:
            time.sleep(2)
            os._exit(0)
    except BlockingIOError:
        break
print(made)
"""


@everyone
def test_a_fork_bomb_ends_at_the_limit(user):
    assert int(inside(FORKS, user, processes=40)["out"]) < 60


def test_a_sandbox_at_its_limit_leaves_room_for_the_next_one():
    """The limit counts the processes of one sandbox, not those of the uid that all sandboxes share."""
    line = sandbox.command([sys.executable, "-c", FORKS + "time.sleep(2)"], limits=sandbox.Limits(processes=40))
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as full:
        time.sleep(0.5)
        assert full.poll() is None
        assert int(inside(FORKS, processes=40)["out"]) > 30


REFUSED = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
def calls(number, *arguments):
    return "let through" if libc.syscall(number, *arguments) >= 0 else errno.errorcode[ctypes.get_errno()]
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers below are those of x86_64")
@everyone
def test_calls_that_no_lesson_needs_are_refused(user):
    numbers = {name: column[0] for name, column in seccomp.REFUSED.items()}
    program = REFUSED + f"print({{name: calls(n, 0, 0, 0, 0, 0) for name, n in {numbers}.items()}})"
    assert eval(inside(program, user)["out"]) == dict.fromkeys(numbers, "EPERM")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers below are those of x86_64")
@everyone
def test_no_way_leads_to_another_namespace(user):
    """In a user namespace of its own a program is root, and mounts as much memory as it likes."""
    program = REFUSED + "print([calls(56, 0x10000000, 0, 0, 0, 0), calls(435, 0, 0), calls(0x40000000 + 272, 0)])"
    assert eval(inside(program, user)["out"]) == ["EPERM", "ENOSYS", "EPERM"]


BOMBS = {
    "one process": "x = bytearray(400 << 20)\ntime.sleep(20)",
    "many processes, each within its limits": """
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(60 << 20)
        time.sleep(20)
time.sleep(20)""",
    "pages shared with a parent, then changed": """
x = bytearray(120 << 20)
for _ in range(4):
    if os.fork() == 0:
        for i in range(0, len(x), 4096):
            x[i] = 1
        time.sleep(20)
time.sleep(20)""",
    "a daemon": """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        x = bytearray(400 << 20)
        time.sleep(20)
    os._exit(0)
time.sleep(20)""",
    "a thread that forks": """
def work():
    if os.fork() == 0:
        x = bytearray(400 << 20)
        time.sleep(20)
    time.sleep(20)
threading.Thread(target=work).start()""",
    "files in /tmp": "for i in range(8): open(f'/tmp/{i}', 'wb').write(bytes(50 << 20))\ntime.sleep(20)",
    "files without a name": """
kept = [open(f'/dev/shm/{i}', 'wb') for i in range(8)]
for i, f in enumerate(kept):
    os.unlink(f.name)
    f.write(bytes(50 << 20))
    f.flush()
time.sleep(20)""",
    "memory files that are only open": """
for i in range(8):
    os.write(os.memfd_create(str(i)), bytes(50 << 20))
time.sleep(20)""",
}


@everyone
@pytest.mark.parametrize("bomb", BOMBS)
def test_the_watchdog_ends_a_sandbox_that_holds_too_much(bomb, user):
    done = inside("import os, time, threading\n" + BOMBS[bomb], user, watched=True, memory=300 << 20)
    assert "GiB of memory; 0.3 GiB are allowed" in done["said"]
    assert done["rc"] == 137


@everyone
def test_the_watchdog_lets_processes_share(user):
    """Ten forks of one process of 100 MiB hold 100 MiB, not 1000."""
    program = """
import os, time
x = bytearray(100 << 20)
for _ in range(10):
    if os.fork() == 0:
        time.sleep(0.6)
        os._exit(0)
time.sleep(0.7)
print("well")
"""
    done = inside(program, user, watched=True, memory=300 << 20)
    assert (done["out"].strip(), done["said"]) == ("well", "")


def test_a_sandbox_made_to_outgrow_the_count_is_ended(monkeypatch):
    """Counting can be made slow, by many processes with many open files; what is not counted must not grow."""
    monkeypatch.setattr(watchdog, "COUNT_S", 0.0)
    line = sandbox.command([sys.executable, "-I", "-c", "import time; time.sleep(20)"])
    with subprocess.Popen(line) as child:
        dog = watchdog.Watchdog(child.pid, 1 << 33)
        assert child.wait(60) == 137
    assert "more processes or open files than can be counted" in dog.said


def test_while_a_sandbox_is_set_up_this_machines_own_files_are_not_counted_as_its():
    """Its first process still sees them, and a disk holds more than a sandbox may."""
    assert os.statvfs("/tmp").f_bfree < os.statvfs("/tmp").f_blocks
    assert watchdog._temporary([os.getpid()]) == 0
    line = sandbox.command([sys.executable, "-I", "-c", "import time; time.sleep(60)"])
    with subprocess.Popen(line) as child:
        until, seen = time.monotonic() + 1.0, []
        while time.monotonic() < until:
            seen.append(watchdog.in_use(child.pid, 1))
        watchdog.kill(child.pid)
    assert 0 < max(seen) < 100 << 20


def test_a_path_that_leads_elsewhere_a_moment_later_is_not_asked_again(monkeypatch):
    """In the middle of moving its root, bubblewrap's process sees this machine's /tmp where a moment before its own
    was: one such look on a busy machine counted 36 GB."""
    line = sandbox.command([sys.executable, "-I", "-c", "import time; time.sleep(60)"])
    with subprocess.Popen(line) as child:
        until = time.monotonic() + 50
        while not watchdog._temporary(list(watchdog.descendants(child.pid))) and time.monotonic() < until:
            time.sleep(0.01)
        held = os.statvfs("/")
        monkeypatch.setattr(os, "statvfs", lambda path: held)
        seen = watchdog._temporary(list(watchdog.descendants(child.pid)))
        watchdog.kill(child.pid)
    assert 0 < seen < 100 << 20


def test_a_count_that_does_not_come_to_its_end_is_too_large_and_not_too_small(monkeypatch):
    line = sandbox.command([sys.executable, "-I", "-c", "import time; x = bytearray(200 << 20); time.sleep(60)"])
    with subprocess.Popen(line) as child:
        until = time.monotonic() + 50
        while watchdog.in_use(child.pid, 100 << 20) < 200 << 20 and time.monotonic() < until:
            time.sleep(0.01)
        monkeypatch.setattr(watchdog, "COUNT_S", 0.0)
        assert watchdog.in_use(child.pid, 100 << 20) >= 200 << 20
        watchdog.kill(child.pid)


def test_a_count_that_once_took_long_ends_nothing(monkeypatch):
    """A machine may stand still for seconds; the next count is as short as ever."""
    count, counted = watchdog.in_use, []

    def stands_still(*given):
        counted.append(time.monotonic())
        if len(counted) in (2, 4):
            time.sleep(0.3)
        return count(*given)

    monkeypatch.setattr(watchdog, "COUNT_S", 0.25)
    monkeypatch.setattr(watchdog, "in_use", stands_still)
    with subprocess.Popen(sandbox.command([sys.executable, "-I", "-c", "import time; time.sleep(2)"])) as child:
        dog = watchdog.Watchdog(child.pid, 1 << 33)
        assert child.wait(60) == 0
        dog.end()
    assert len(counted) > 5 and not dog.said


def test_without_bubblewrap_grading_is_refused_with_the_way_to_install_it(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    sandbox.require.cache_clear()
    with pytest.raises(sandbox.NoSandbox, match="apt-get install bubblewrap"):
        sandbox.require()
    sandbox.require.cache_clear()
