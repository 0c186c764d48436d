"""Runs `tieredstore` in real processes that cost milliseconds: forked from one that imported it.

A process of its own starts in half a second, and a test that kills hundreds cannot wait for that.
What is forked has the parent's modules and nothing else of it: own pid, own files, own loop.
"""

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

PR_SET_PDEATHSIG = 1
START_S_MAX = 60.0
END_S_MAX = 60.0


class ForkedCommands:
    """A parent that forks one command at a time. Use it as `with ForkedCommands(log) as ...`."""

    def __init__(self, log: Path) -> None:
        """Whatever the commands print goes to the file `log`."""
        self.log = log
        self._running = 0

    def __enter__(self) -> Self:
        with self.log.open("ab") as errors:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(self.log)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        assert self._answer(START_S_MAX) == "ready"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._running:
            os.kill(self._running, signal.SIGKILL)
        self._server.kill()  # a command that still runs dies with it
        self._server.communicate()

    def start(self, arguments: Sequence[str]) -> int:
        """Fork `tieredstore ARGUMENTS`; its process id. The one before has ended."""
        assert not self._running, "one at a time"
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(list(arguments)) + "\n")
        self._running = int(self._answer(START_S_MAX))
        return self._running

    def kill(self) -> int:
        """SIGKILL the command, wait for its end, and return `ended`: -9 unless it was faster.

        Its id is its own until the next `start`, for nobody reaps it before.
        """
        os.kill(self._running, signal.SIGKILL)
        return self.ended(END_S_MAX)

    def ended(self, seconds_max: float) -> int:
        """Wait for the command's end; its exit status, or the negative signal that killed it."""
        status = int(self._answer(seconds_max))
        self._running = 0
        return status

    def has_ended(self) -> bool:
        """Whether the command ended by itself; `ended` then returns at once."""
        return self._is_readable(0)

    def last_words(self) -> str:
        """The end of what was printed."""
        return self.log.read_text(errors="replace")[-4000:]

    def _is_readable(self, seconds_max: float) -> bool:
        assert self._server.stdout is not None
        return bool(select.select([self._server.stdout], [], [], seconds_max)[0])

    def _answer(self, seconds_max: float) -> str:
        assert self._is_readable(seconds_max), f"no answer in {seconds_max} s: {self.last_words()}"
        assert self._server.stdout is not None
        line = self._server.stdout.readline().strip()
        assert line, f"the parent of the commands ended: {self.last_words()}"
        return line


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _command(arguments: list[str], log: str) -> None:
    """The child's life."""
    from tieredstore.cli.main import cli  # noqa: PLC0415 - only the child and its parent need it

    status = 70
    try:
        _die_with_parent()
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        cli.main(arguments)
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 1
    finally:
        os._exit(status)


def _serve(log: str) -> None:
    import tieredstore.cli.tier  # noqa: F401, PLC0415 - so that the children have it

    _die_with_parent()
    print("ready", flush=True)
    pid = 0
    for line in iter(sys.stdin.readline, ""):
        if pid:
            os.waitpid(pid, 0)  # only now: until here nobody else could get its id
        pid = os.fork()
        if pid == 0:
            _command(json.loads(line), log)
        print(pid, flush=True)
        ending = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ending is not None
        was_exit = ending.si_code == os.CLD_EXITED
        print(ending.si_status if was_exit else -ending.si_status, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
