"""Our command line, run as a user runs it: in a process of its own."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cli import run
from tests.support.http import free_port, get
from tests.support.patience import Background, Patience, completed, ended, wait_until

POLL_S = 0.5


@dataclass(frozen=True)
class Tieredstore:
    """`tieredstore` with a configuration file and a tier."""

    conf: Path
    tier: Path | str
    """A directory, or a URL."""

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tieredstore.cli.main", *self._options(), *arguments]

    def _options(self) -> list[str]:
        return ["--conf", str(self.conf), "-D", f"tieredStoreFilePath={self.tier}"]

    def attempt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, whatever that is."""
        return completed(self.command(*arguments))

    def run(self, *arguments: str) -> str:
        """Runs a command that must succeed; what it printed."""
        done = self.attempt(*arguments)
        assert done.returncode == 0, f"{arguments} exited with {done.returncode}: {done.stderr}"
        return done.stdout

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """The JSON lines of a command that must succeed."""
        return [json.loads(line) for line in self.run(*arguments, "--json").splitlines()]

    def messages(self, topic: str) -> dict[int, list[dict[str, Any]]]:
        """All messages of a topic by queue number, bodies as digests."""
        queues: dict[int, list[dict[str, Any]]] = {}
        for row in self.rows("read", topic, "--digest"):
            queues.setdefault(row["queue_id"], []).append(row)
        return queues

    def committed(self) -> dict[tuple[str, int], int]:
        """Commit offsets by topic and queue number; none where there is no tier yet.

        Asked in this process, for those who wait ask often.
        """
        done = run(*self._options(), "topics", "--json", status=None)
        rows = [] if done.status else done.rows
        return {(row["topic"], row["queue_id"]): row["commit_offset"] for row in rows}

    def wait_for(
        self, ends: Mapping[tuple[str, int], int], follower: subprocess.Popen[bytes]
    ) -> None:
        """Returns once the commit offset of every queue has reached its end."""
        committed: dict[tuple[str, int], int] = {}

        def is_there() -> bool:
            assert follower.poll() is None, f"the follower ended with {follower.returncode}"
            committed.update(self.committed())
            return all(committed.get(queue, 0) >= end for queue, end in ends.items())

        wait_until(
            is_there,
            Patience(lambda: f"at {committed}, not at {ends}", marks=committed.copy),
            POLL_S,
        )

    @contextmanager
    def following(self, store: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """`tier --follow` in the background, ended by force if the block does not end it."""
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command("tier", str(store), "--follow"),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def stop(process: subprocess.Popen[bytes]) -> int:
    """Asks a process to end; its exit status."""
    process.send_signal(signal.SIGTERM)
    return ended(process)


@dataclass
class Serve(Background):
    """`tieredstore serve` at a port of its own, with its pages, ready once it has started."""

    ours: Tieredstore
    directory: Path
    port: int = field(default_factory=free_port)
    pages: int = field(default_factory=free_port)
    more: Mapping[str, object] = field(default_factory=dict)
    """Further settings."""
    words: Sequence[str] = ()
    """Further arguments."""

    def start(self) -> None:
        values = {
            "tieredStoreServePort": self.port,
            "tieredStoreMetricsPort": self.pages,
            "tieredStoreServeStatePath": self.directory / "state",
            **self.more,
        }
        defines = [part for key, value in values.items() for part in ("-D", f"{key}={value}")]
        with (self.directory / "serve.log").open("ab") as log:
            command = self.ours.command("serve", *self.words, *defines)
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        patience = Patience("it is not ready", pids=[self.process.pid])
        wait_until(lambda: get(self.pages, "/readyz")[0] == 200, patience)

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            self.start()
            yield
        finally:
            self.kill()

    def stop(self) -> int:
        """Asks it to end; its exit status."""
        assert self.process is not None
        return stop(self.process)

    def answers(self, request: str, response: str) -> float:
        """How many requests it has answered so since its start."""
        labels = f'request="{request}",response="{response}"'
        sample = rf"^tieredstore_serve_requests_total\{{[^}}]*{labels}\}} (.+)$"
        found = re.findall(sample, get(self.pages, "/metrics")[1], re.MULTILINE)
        return sum(map(float, found))
