"""RocketMQ's own tiered store as the other side of a comparison: one JVM for all rounds."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.rocketmq_broker import BrokerInstall
from tieredstore.bench.measure import Figure, settle
from tieredstore.bench.synthetic_store import SyntheticStore

STOP_S_MAX = 30


@dataclass(frozen=True)
class JavaFigure(Figure):
    """One measurement of the Java store."""

    store: Path
    """The directory of the local store that it was about."""
    wrong_messages: int
    """Records that were delivered and not asked for (RocketMQ issue 10470)."""
    p50_us: float = 0.0
    """Of single calls, where these were timed."""
    p99_us: float = 0.0


class JavaSide:
    """The JVM of `tests/rocketmq/src/Bench.java`, as a context manager that ends it.

    `directory` must be empty or missing, and says which disk is measured.
    """

    def __init__(
        self, install: BrokerInstall, directory: Path, made: SyntheticStore, *, heap_mib: int = 4096
    ) -> None:
        command = install.java(
            "Bench",
            *(str(directory), str(made.body_bytes), str(made.queues), str(made.messages)),
            home=directory,
            heap_mib=heap_mib,
            # the four-group read logs tens of thousands of errors (RocketMQ issue 10470)
            properties={"tieredstore.log.level": "OFF"},
        )
        self._memory_bytes = made.memory_bytes
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when the JVM ends
        self._jvm = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._jvm.kill()
        try:
            self._jvm.communicate(timeout=STOP_S_MAX)
        finally:
            self._jvm.kill()
            self._jvm.wait()
            self._errors.close()

    def ask(self, command: str) -> JavaFigure:
        """What one command of `Bench.java` measured; everything is written back before it.

        Raises:
            RuntimeError: the JVM failed; the message ends with what it said.
        """
        assert self._jvm.stdin is not None
        assert self._jvm.stdout is not None
        settle(self._memory_bytes)
        print(command, file=self._jvm.stdin, flush=True)
        for line in self._jvm.stdout:
            if line.startswith("{"):  # else it is somebody's log
                row = json.loads(line)
                return JavaFigure(**{**row, "store": Path(row["store"])})
        self._errors.seek(0)
        raise RuntimeError(f"the JVM ended at {command}: {self._errors.read()[-2000:]}")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop all its threads, which else wake a thousand times a second, for the other side."""
        os.kill(self._jvm.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._jvm.pid, signal.SIGCONT)
