"""Runs `tieredstore` in real processes that cost milliseconds: forked from one that imported it.

A process of its own starts in half a second, and a test that kills hundreds cannot wait for that.
What is forked has the parent's modules and nothing else of it: own pid, own files, own loop.
"""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from tests.support.patience import Patience

SERVER = Path(__file__).with_name("forking_parent.py")
LOOK_S = 1.0


class ForkedCommands:
    """A parent that forks one command at a time. Use it as `with ForkedCommands(log) as ...`."""

    def __init__(self, log: Path) -> None:
        """Whatever the commands print goes to the file `log`."""
        self.log = log
        self._running = 0

    def __enter__(self) -> Self:
        with self.log.open("ab") as errors:
            self._server = subprocess.Popen(
                [sys.executable, str(SERVER), str(self.log)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                bufsize=1,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )
        assert self._answer(self._server.pid) == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        if self._running:
            os.kill(self._running, signal.SIGKILL)
        self._server.kill()  # a command that still runs dies with it
        self._server.communicate()

    def start(self, arguments: Sequence[str]) -> int:
        """Fork `tieredstore ARGUMENTS`; its process id. The one before has ended."""
        assert not self._running, "one at a time"
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(list(arguments)) + "\n")
        self._running = int(self._answer(self._server.pid))
        return self._running

    def kill(self) -> int:
        """SIGKILL the command, wait for its end, and return `ended`: -9 unless it was faster.

        Its id is its own until the next `start`, for nobody reaps it before.
        """
        os.kill(self._running, signal.SIGKILL)
        return self.ended()

    def ended(self) -> int:
        """Wait for the command's end; its exit status, or the negative signal that killed it."""
        status = int(self._answer(self._running))
        self._running = 0
        return status

    def has_ended(self) -> bool:
        """Whether the command ended by itself; `ended` then returns at once."""
        return self._is_readable(0)

    def last_words(self) -> str:
        """The end of what was printed."""
        return self.log.read_text(errors="replace")[-4000:]

    def patience(self, otherwise: str, marks: Callable[[], object] = lambda: None) -> Patience:
        """For waits on what the command does."""
        return Patience(
            lambda: f"{otherwise}: {self.last_words()}", marks=marks, pids=[self._running]
        )

    def _is_readable(self, seconds_max: float) -> bool:
        assert self._server.stdout is not None
        return bool(select.select([self._server.stdout], [], [], seconds_max)[0])

    def _answer(self, pid: int) -> str:
        """The next line, which comes when the process `pid` is done."""
        patience = Patience(lambda: f"no answer: {self.last_words()}", pids=[pid])
        while not self._is_readable(LOOK_S):
            patience.look()
        assert self._server.stdout is not None
        line = self._server.stdout.readline().strip()
        assert line, f"the parent of the commands ended: {self.last_words()}"
        return line
