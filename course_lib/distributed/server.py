"""The client side of the warm process. The first launch starts it; forked children of this process use it too."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch

COURSE = Path(__file__).resolve().parents[2]
WAITING = 64  # connections that may wait while it imports torch


class Server:
    def __init__(self):
        self.folder = ""  # files of the warm process and its launches; the warm process removes it at its end
        self.process: subprocess.Popen | None = None
        self.owner = 0  # the process that started it
        self.alive = -1  # the warm process runs while some process holds this end of a pipe
        self.lock = threading.Lock()

    def connect(self) -> socket.socket:
        """A connection for one launch, to a process that may have to be started first."""
        with self.lock:
            for _ in range(2):
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                try:
                    connection.connect(os.path.join(self.folder, "door"))
                    return connection
                except (FileNotFoundError, ConnectionRefusedError):
                    connection.close()
                    self._start()
        raise RuntimeError(self.gone())

    def gone(self) -> str:
        said = ""
        with contextlib.suppress(OSError):
            said = Path(self.folder, "stderr").read_text(errors="replace")[-2000:]
        return f"the process that starts ranks has ended: {said or 'it said nothing'}"

    def stop(self) -> None:
        """Release the warm process. If this process started it, wait until it has ended."""
        if self.alive >= 0:
            os.close(self.alive)
        if self.process is not None and self.owner == os.getpid():
            try:
                self.process.wait(5.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder, self.process, self.alive = "", None, -1

    def _start(self) -> None:
        self.stop()
        self.folder, self.owner = tempfile.mkdtemp(prefix="ranks-"), os.getpid()
        alive, self.alive = os.pipe()
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with door, open(os.path.join(self.folder, "stderr"), "wb") as errors:
            door.bind(os.path.join(self.folder, "door"))
            door.listen(WAITING)  # before the process runs, so that early connections wait
            code = f"import sys; sys.path[:] = {[str(COURSE), *filter(None, sys.path)]!r}; "
            code += "from course_lib.distributed.warm import main; "
            code += f"main({door.fileno()}, {alive}, {self.folder!r}, {torch.cuda.device_count()})"
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[door.fileno(), alive],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                start_new_session=True,  # interrupting a cell must not reach it: its launch ends with the connection
            )
        os.close(alive)


SERVER = Server()
atexit.register(SERVER.stop)
os.register_at_fork(after_in_child=lambda: setattr(SERVER, "lock", threading.Lock()))
