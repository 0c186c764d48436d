"""Our command line, run as a user runs it: in a process of its own."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUN_S_MAX = 60
STOP_S_MAX = 30
POLL_S = 0.5
MESSAGES_MAX = 1_000_000


@dataclass(frozen=True)
class Tieredstore:
    """`tieredstore` with a configuration file and a tier."""

    conf: Path
    tier: Path

    def command(self, *arguments: str) -> list[str]:
        options = ["--conf", str(self.conf), "-D", f"tieredStoreFilePath={self.tier}"]
        return [sys.executable, "-m", "tieredstore.cli.main", *options, *arguments]

    def attempt(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command to its end, whatever that is."""
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )

    def run(self, *arguments: str) -> str:
        """Runs a command that must succeed; what it printed."""
        done = self.attempt(*arguments)
        assert done.returncode == 0, f"{arguments} exited with {done.returncode}: {done.stderr}"
        return done.stdout

    def rows(self, *arguments: str) -> list[dict[str, Any]]:
        """The JSON lines of a command that must succeed."""
        return [json.loads(line) for line in self.run(*arguments, "--json").splitlines()]

    def messages(self, topic: str, queue_id: int) -> list[dict[str, Any]]:
        """All messages of a queue, bodies as digests."""
        limit = ("--offset", "0", "--max", str(MESSAGES_MAX), "--digest")
        return self.rows("read", topic, str(queue_id), *limit)

    def wait_for(
        self,
        ends: Mapping[tuple[str, int], int],
        follower: subprocess.Popen[bytes],
        seconds_max: float,
    ) -> None:
        """Returns once the commit offset of every queue has reached its end."""
        deadline_s = time.monotonic() + seconds_max
        while True:
            done = self.attempt("topics", "--json")
            rows = (
                [json.loads(line) for line in done.stdout.splitlines()]
                if done.returncode == 0
                else []
            )
            committed = {(row["topic"], row["queue_id"]): row["commit_offset"] for row in rows}
            behind = {
                queue: (committed.get(queue), end)
                for queue, end in ends.items()
                if committed.get(queue, 0) < end
            }
            if not behind:
                return
            assert follower.poll() is None, f"the follower ended with {follower.returncode}"
            assert time.monotonic() < deadline_s, f"still behind: {behind}\n{done.stderr}"
            time.sleep(POLL_S)

    @contextlib.contextmanager
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
    return process.wait(STOP_S_MAX)
