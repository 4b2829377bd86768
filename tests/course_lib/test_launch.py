"""launch: from a cell, a script and torchrun; what fails, hangs or is killed ends all, is told, and leaves nothing."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import nbformat
import pytest
import torch
import torch.distributed as dist
from nbclient import NotebookClient

from course_lib.distributed import RankFailed, launch, place
from course_lib.distributed.server import SERVER

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has collected yet has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(done, seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.02)
    return done()


def numbers_in(folder: Path) -> list[int]:
    return [int(path.read_text()) for path in folder.iterdir()]


def failure(function, size: int = 2, **options) -> RankFailed:
    with pytest.raises(RankFailed) as caught:
        launch(function, size, "gloo", **options)
    return caught.value


# ------------------------------------------------------------------------------------------- what goes well


def test_every_rank_returns_its_own_value_and_sums_are_sums_over_all():
    def add(rank, scale):
        total = scale * torch.tensor([float(rank), 1.0], device=place())
        dist.all_reduce(total)
        return rank, dist.get_world_size(), total

    for size in (1, 2, 3):
        results = launch(add, size, "gloo", args=(torch.tensor(2.0),))
        assert [(rank, seen) for rank, seen, _ in results] == [(rank, size) for rank in range(size)]
        assert all(total.tolist() == [size * (size - 1), 2 * size] for _, _, total in results)


def test_what_ranks_print_appears_with_their_number_and_stderr_does_not(capsys):
    def talk(rank):
        print(f"first of {rank}\nsecond", end="")
        print("a warning", file=sys.stderr)

    launch(talk, 2, "gloo")
    said = capsys.readouterr()
    lines = ["rank 0: first of 0", "rank 0: second", "rank 1: first of 1", "rank 1: second"]
    assert sorted(said.out.splitlines()) == lines
    assert said.err == ""


def test_ranks_have_the_environment_and_the_folder_of_the_caller(monkeypatch, tmp_path):
    monkeypatch.setenv("SOMETHING_NEW", "7")
    monkeypatch.chdir(tmp_path)
    told = launch(lambda rank: (os.environ["SOMETHING_NEW"], os.getcwd(), os.environ["NCCL_NVLS_ENABLE"]), 2, "gloo")
    assert told == [("7", str(tmp_path), "0")] * 2


def test_a_module_beside_the_caller_can_be_imported(monkeypatch, tmp_path):
    (tmp_path / "beside_the_lesson.py").write_text("def twice(rank):\n    return 2 * rank\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import beside_the_lesson

    assert launch(beside_the_lesson.twice, 2, "gloo") == [0, 2]


def test_the_process_that_forks_ranks_has_one_thread():
    """With a pool of threads in it, a child's first parallel operation would wait for threads it does not have."""
    launch(lambda rank: None, 1, "gloo")
    assert len(os.listdir(f"/proc/{SERVER.process.pid}/task")) == 1


def test_launches_of_several_threads_run_side_by_side():
    def shared(rank, value):
        total = torch.tensor(float(value))
        dist.all_reduce(total)
        return total.item()

    found = {}
    threads = [
        threading.Thread(target=lambda v=v: found.update({v: launch(shared, 2, "gloo", args=(v,))})) for v in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {value: [2.0 * value] * 2 for value in range(4)}


def test_a_forked_child_starts_ranks_without_importing_torch_again():
    launch(lambda rank: None, 1, "gloo")
    pid = os.fork()
    if pid == 0:
        server = SERVER.folder
        fine = launch(lambda rank: rank, 2, "gloo") == [0, 1] and SERVER.folder == server
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert launch(lambda rank: rank, 2, "gloo") == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [((0,), "from 1 to 64"), ((65,), "from 1 to 64"), ((2, "mpi"), "gloo"), ((2, "nccl "), "gloo")],
)
def test_a_size_or_backend_that_cannot_be_is_refused(arguments, says):
    with pytest.raises(ValueError, match=says):
        launch(lambda rank: None, *arguments)


# ------------------------------------------------------------------------------------------- what goes wrong


def test_an_exception_ends_all_and_shows_that_ranks_traceback():
    def step(rank):
        if rank == 1:
            raise ValueError("the loss is NaN")
        dist.barrier()

    started = time.monotonic()
    error = failure(step)
    assert time.monotonic() - started < 60
    assert error.rank == 1
    assert error.says.startswith("rank 1 of 2 raised ValueError: the loss is NaN")
    assert "rank 0 was at line" in error.says and "dist.barrier()" in error.says
    assert 'raise ValueError("the loss is NaN")' in error.details
    assert "rank.py" not in error.details, "our own frames say nothing"


def test_the_cause_is_told_and_not_what_it_caused():
    """Rank 0 loses its connection because rank 1 has gone, and may say so first."""

    def step(rank):
        if rank == 1:
            os._exit(3)
        dist.all_reduce(torch.ones(1 << 16))

    error = failure(step)
    assert error.says.startswith("rank 1 of 2 ended with status 3 before it returned")


def test_a_rank_that_leaves_by_exit_is_a_failure():
    def step(rank):
        if rank == 0:
            sys.exit("enough")
        dist.barrier()

    assert failure(step).says.startswith("rank 0 of 2 raised SystemExit: enough")


def test_a_crash_is_told_with_the_line_that_crashed():
    def step(rank):
        import ctypes

        if rank == 0:
            ctypes.string_at(0)
        dist.barrier()

    error = failure(step)
    assert error.says.startswith("rank 0 of 2 was ended by SIGSEGV")
    assert "test_launch.py" in error.details


def test_a_hang_ends_at_the_limit_and_names_the_rank_that_holds_the_others_up():
    def step(rank):
        if rank == 1:
            while True:
                pass
        dist.all_reduce(torch.ones(4))

    started = time.monotonic()
    error = failure(step, size=3, limit_s=1.0)
    assert time.monotonic() - started < 60
    assert error.says.startswith("rank 1 of 3 did not end in 1 s")
    assert error.says.count("dist.all_reduce(torch.ones(4))") == 2
    assert "while True" in error.details or "pass" in error.details


def test_a_rank_that_waits_for_one_that_has_returned_is_told():
    def step(rank):
        if rank == 0:
            dist.recv(torch.empty(3), 1)

    error = failure(step, limit_s=1.0)
    assert error.says.startswith("rank 0 of 2 did not end in 1 s\nrank 1 had returned")
    assert "dist.recv" in error.details


def test_ranks_that_ignore_signals_are_ended_too(tmp_path):
    def step(rank):
        (tmp_path / f"{rank}").write_text(str(os.getpid()))
        for one in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(one, signal.SIG_IGN)
        time.sleep(60)

    failure(step, limit_s=1.0)
    assert all(gone(pid) for pid in numbers_in(tmp_path))


def test_what_a_rank_started_is_ended_with_it(tmp_path):
    def step(rank):
        for session in (False, True):
            child = subprocess.Popen(["sleep", "60"], start_new_session=session)
            (tmp_path / f"{rank}{session}").write_text(str(child.pid))

    launch(step, 2, "gloo")
    children = numbers_in(tmp_path)
    assert len(children) == 4
    assert wait_until(lambda: all(map(gone, children)))


def test_a_function_that_cannot_travel_and_a_result_that_cannot_are_told():
    lock = threading.Lock()
    with pytest.raises(TypeError, match="lock"):
        launch(lambda rank: lock, 2, "gloo")
    assert "TypeError" in failure(lambda rank: threading.Lock()).says


def test_a_launch_inside_a_rank_is_refused():
    assert "cannot start ranks" in failure(lambda rank: launch(lambda r: r, 2, "gloo")).says


# ------------------------------------------------------------------------------------------- where from


@pytest.mark.slow
def test_cells_of_a_notebook_define_launch_and_fail_readably():
    cells = [
        "import torch, torch.distributed as dist\nfrom course_lib.distributed import launch\nSCALE = 3",
        "class Model(torch.nn.Linear):\n    pass\n\ndef step(rank):\n    x = torch.tensor(float(rank + 1))\n"
        "    dist.all_reduce(x)\n    print('sum', x.item())\n    return SCALE * Model(2, 2)(torch.ones(2)).shape[0]",
        "launch(step, 2, 'gloo')",
        "def wrong(rank):\n    if rank == 1:\n        return {}['nothing']\n    dist.barrier()",
        "launch(wrong, 2, 'gloo')",
        "launch(step, 3, 'gloo')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    NotebookClient(notebook, timeout=120, allow_errors=True, resources={"metadata": {"path": str(ROOT)}}).execute()
    done, failed, again = (notebook.cells[i].outputs for i in (2, 4, 5))
    printed = "".join(out.text for out in done if out.output_type == "stream")
    assert sorted(printed.splitlines()) == ["rank 0: sum 3.0", "rank 1: sum 3.0"]
    assert done[-1].data["text/plain"] == "[6, 6]"
    assert failed[-1].ename == "RankFailed"
    assert "rank 1 of 2 raised KeyError" in failed[-1].evalue
    assert "return {}['nothing']" in failed[-1].evalue, "the line of the cell"
    assert again[-1].data["text/plain"] == "[6, 6, 6]"
    assert not any(out.get("name") == "stderr" for out in (*done, *again))


def script(folder: Path, body: str, *before: str) -> subprocess.Popen:
    """A script as people write one, without a guard for being imported. It can be interrupted: what a shell runs in the
    background cannot, these tests among it, and hands that on."""
    head = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    head += "import os, sys, time, torch, torch.distributed as dist\nfrom course_lib.distributed import launch\n"
    (folder / "script.py").write_text(head + textwrap.dedent(body))
    line = [sys.executable, *before, str(folder / "script.py")]
    return subprocess.Popen(line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


SLEEPS = """
    def step(rank):
        open(f"{sys.argv[0]}.{rank}", "w").write(str(os.getpid()))
        time.sleep(60)
    print(os.getpid(), flush=True)
    launch(step, 2, "gloo")
"""


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_a_caller_that_is_interrupted_or_killed_leaves_no_process_and_no_file(tmp_path, by):
    process = script(tmp_path, SLEEPS)
    files = [tmp_path / f"script.py.{rank}" for rank in range(2)]
    assert wait_until(lambda: all(file.exists() and file.read_text() for file in files), 60)
    pids = [int(file.read_text()) for file in files]
    warm = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    code = re.search(r"main\(\d+, \d+, '(.*?)', \d+\)", Path(f"/proc/{warm}/cmdline").read_text())
    process.send_signal(by)
    process.wait(60)
    assert process.returncode != 0
    assert wait_until(lambda: all(map(gone, [*pids, warm])))
    assert wait_until(lambda: not Path(code.group(1)).exists())
    if by == signal.SIGINT:
        assert "KeyboardInterrupt" in process.stderr.read()
    process.stdout.close(), process.stderr.close()


def test_under_torchrun_each_process_is_a_rank_and_gets_all_results(tmp_path):
    body = """
        def step(rank):
            total = torch.tensor(rank + 1.0)
            dist.all_reduce(total)
            return total.item() + rank
        first, second = launch(step, 2, "gloo"), launch(step, 2, "gloo")
        open(f"{sys.argv[0]}.{os.environ['RANK']}", "w").write(f"{first} {second}")
    """
    process = script(tmp_path, body, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert "abort" not in said.lower() and "destroy_process_group" not in said
    assert [(tmp_path / f"script.py.{rank}").read_text() for rank in range(2)] == ["[3.0, 4.0] [3.0, 4.0]"] * 2


def test_under_torchrun_another_number_of_ranks_is_refused(monkeypatch):
    sizes = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}
    for name, value in sizes.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="asked for 2 ranks, and torchrun started 4"):
        launch(lambda rank: None, 2)


TWO_GPUS = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "sizes"), [("gloo", (2, 3, 4, 2, 2)), pytest.param("nccl", (2, 2, 2, 2, 2), marks=TWO_GPUS)]
)
def test_fifty_launches_in_a_row_leave_nothing_behind(backend, sizes):
    def step(rank):
        total = torch.ones(1 << 12, device=place())
        works = [dist.all_reduce(total.clone(), async_op=True) for _ in range(4)]
        for work in works:
            work.wait()
        return os.getpid()

    launch(step, 2, backend)
    warm = SERVER.process.pid
    before = (len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{warm}/fd")), threading.active_count())
    pids = [pid for size in sizes * 10 for pid in launch(step, size, backend, limit_s=60)]
    after = (len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{warm}/fd")), threading.active_count())
    assert SERVER.process.pid == warm and after == before
    assert len(set(pids)) == 10 * sum(sizes) and all(map(gone, pids))
    assert sorted(os.listdir(SERVER.folder)) == ["door", "stderr"]
    assert Path(f"/proc/{warm}/task/{warm}/children").read_text() == ""
    assert Path(SERVER.folder, "stderr").read_text() == ""


@pytest.mark.slow
def test_the_process_that_starts_ranks_asks_for_no_gpu():
    """What it opened would be closed in its children, and NCCL could not open it again."""
    code = (
        "import torch; asked = []; "
        "torch.cuda.device_count = torch.cuda.is_available = lambda: asked.append(True) or 0; "
        "from course_lib.distributed.warm import preload; preload(0); print(len(asked), torch.cuda.device_count())"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["0", "0"]


@pytest.mark.gpu
def test_with_a_gpu_for_each_rank_the_same_function_uses_nccl():
    size = torch.cuda.device_count()

    def add(rank):
        total = torch.full((1 << 20,), rank + 1.0, device=place())
        dist.all_reduce(total)
        return dist.get_backend(), total.device.index, total[-1].item()

    for _ in range(3):
        assert launch(add, size) == [("nccl", rank, size * (size + 1) / 2) for rank in range(size)]
    assert "libnvidia-ml" not in Path(f"/proc/{SERVER.process.pid}/maps").read_text()
    if size > 1:

        def hang(rank):
            if rank == 0:
                dist.all_reduce(torch.ones(4, device=place()))
                torch.cuda.synchronize()
            while rank:
                pass

        with pytest.raises(RankFailed, match=f"rank 1 of {size} did not end in 20 s"):
            launch(hang, size, limit_s=20)
