"""A command in a network namespace of its own that reaches one port of this host's loopback.

`unshare --net python -m tests.support.own_network SOCKET PORT COMMAND...` starts loopback there and
forwards the port to a socket in the file system, at which `Outside` serves the port of this host.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Self

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG, linux/prctl.h


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _join(near: socket.socket, far: socket.socket) -> None:
    with near, far:
        back = Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()


def _forward(listener: socket.socket, connected: Callable[[], socket.socket]) -> None:
    joined: list[Thread] = []
    with suppress(OSError):  # the listener was closed
        while True:
            near, _ = listener.accept()
            joined.append(Thread(target=_join, args=(near, connected()), daemon=True))
            joined[-1].start()
    for one in joined:
        one.join()


def _unix(path: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    found.connect(path)
    return found


class Outside:
    """The side of the host; as a context, it ends with the block."""

    def __init__(self, path: Path, port: int) -> None:
        self.words = (
            *("unshare", "--net", sys.executable, "-m", "tests.support.own_network"),
            *(str(path), str(port)),
        )
        """They go before a command."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(128)
        served = (self._listener, lambda: socket.create_connection(("127.0.0.1", port)))
        self._thread = Thread(target=_forward, args=served, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


def main() -> None:
    """Forward in a child, and become the command."""
    path, port = sys.argv[1], int(sys.argv[2])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    parent = os.getpid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # the command ended before the request, which is for later ends
            os._exit(0)
        _forward(listener, lambda: _unix(path))
        os._exit(0)
    listener.close()
    os.execvp(sys.argv[3], sys.argv[3:])


if __name__ == "__main__":
    main()
