"""Joined files of an export: each message once for every reader, whichever process dies."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tests.support.cli import run
from tests.support.three_brokers import MESSAGES, tier_of_three
from tests.test_tieredstore.offline.test_export import Growing, exported, files_of, planned
from tieredstore.cli.commands import export as export_command
from tieredstore.cli.signals import EndRequest
from tieredstore.offline.export import joining
from tieredstore.offline.export.joining import joined


class SameDay(Growing):
    """A tier whose messages are all of one day."""

    def grow(self, count: int, **more: Any) -> None:
        now_ms = self.broker.now_ms
        super().grow(count, **more)
        self.broker.now_ms = now_ms


def small_runs(tmp_path: Path, runs: int = 4) -> tuple[SameDay, Path]:
    """A tier, and its export by so many runs."""
    growing, out = SameDay(tmp_path), tmp_path / "out"
    for number in range(runs):
        growing.grow(3 + number)
        exported(growing.tier, out)
    return growing, out


def rows_in(out: Path) -> list[dict[str, Any]]:
    """The rows that a reader sees, which lists the directory first."""
    files = sorted(str(one) for one in out.rglob("*.parquet"))
    read = ds.dataset(files, format="parquet").to_table(
        columns=["queue_id", "queue_offset", "body"]
    )
    return read.to_pylist()


def place_of(row: dict[str, Any]) -> tuple[int, int]:
    return row["queue_id"], row["queue_offset"]


def bodies_in(out: Path) -> list[bytes]:
    return sorted((row["body"] for row in rows_in(out)), key=int)


def test_small_runs_become_one_file_of_each_day_and_later_runs_join_it(tmp_path: Path) -> None:
    growing, out = small_runs(tmp_path)
    before = rows_in(out)
    assert len(files_of(out)) == 8  # of two queues each
    words = ("--tier", growing.tier, "export", out, "--processes", "1", "--join")
    done = run(*words)
    assert "8 files of 1 partition joined" in done.err
    (name,) = files_of(out)
    assert "/day=" in name
    after = rows_in(out)
    assert sorted(after, key=place_of) == sorted(before, key=place_of)
    assert after == sorted(after, key=place_of), "queue after queue"
    assert "joined" not in run(*words).err
    growing.grow(5)
    run(*words)
    assert len(files_of(out)) == 1
    assert bodies_in(out) == growing.bodies
    assert [one.name for one in tmp_path.iterdir() if "joining" in one.name] == []


def test_large_files_stay_and_the_follower_joins_sixteen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing, out = small_runs(tmp_path, 2)
    large = max(out.rglob("*.parquet"), key=lambda one: one.stat().st_size)
    size = large.stat().st_size
    number = large.stat().st_ino
    with monkeypatch.context() as patched:
        patched.setattr(joining, "JOINED_BYTES_MAX", size)
        joined(out, top=out, files_min=2)
    (kept,) = [one for one in out.rglob("*.parquet") if one.stat().st_ino == number]
    assert kept.name == large.name
    assert bodies_in(out) == growing.bodies
    monkeypatch.setattr(export_command, "FOLLOWED_FILES_MIN", 5)
    between: list[Callable[[], object]] = [lambda: growing.grow(2), lambda: growing.grow(2)]
    monkeypatch.setattr(EndRequest, "wait", lambda *_: between.pop(0)() if between else True)
    run("--tier", growing.tier, "export", out, "--processes", "1", "--follow", "--join")
    assert bodies_in(out) == growing.bodies
    assert len(files_of(out)) < 5


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", range(1, 9))
def test_killed_at_any_step_each_message_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    growing, out = small_runs(tmp_path, 2)
    left = step

    def counted(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            result = work(*given, **more)
            left -= 1
            if left == 0:
                raise Killed
            return result

        return call

    with monkeypatch.context() as patched:
        patched.setattr(joining, "_exchange", counted(joining._exchange))
        patched.setattr(joining.OpenFile, "complete", counted(joining.OpenFile.complete))
        patched.setattr(joining, "sync_directory", counted(joining.sync_directory))
        # What a killed process cannot clean up.
        patched.setattr(joining.shutil, "rmtree", lambda *_, **__: None)
        patched.setattr(joining.OpenFile, "remove", lambda _: None)
        with pytest.raises(Killed):
            joined(out, top=out, files_min=2)
    assert bodies_in(out) == growing.bodies
    joined(out, top=out, files_min=2)
    assert bodies_in(out) == growing.bodies
    assert len(files_of(out)) == 1
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out", "store", "tier"]


def test_a_reader_sees_each_message_once_or_an_error(tmp_path: Path) -> None:
    growing, out = small_runs(tmp_path, 2)
    ended, wrong = threading.Event(), list[object]()
    reads = 0

    def read() -> None:
        nonlocal reads
        while not ended.is_set():
            try:
                found = bodies_in(out)
            except FileNotFoundError:
                continue
            reads += 1
            if found != growing.bodies:
                wrong.append(found)

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(20):
        joined(out, top=out, files_min=1)
    ended.set()
    thread.join()
    assert (wrong, reads > 0) == ([], True)


def test_an_unfinished_run_is_not_joined_and_files_that_cannot_be_joined_are_refused(
    golden_tier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing, out = small_runs(tmp_path)
    (done,) = (out / "_tieredstore").glob("done-000004")
    (task,) = [one for one in done.iterdir() if one.name == "000000"]
    task.rename(tmp_path / "task")
    words = ("--tier", growing.tier, "export", out, "--processes", "1", "--join")
    before = files_of(out)
    assert planned(growing.tier, out).join(out, files_min=2).files == 0
    assert files_of(out) == before
    (tmp_path / "task").rename(task)

    class Libc:
        """A file system without exchanges."""

        def renameat2(self, *_: object) -> int:
            return -1

    with monkeypatch.context() as patched:
        patched.setattr(joining.ctypes, "CDLL", lambda *_, **__: Libc())
        patched.setattr(joining.ctypes, "get_errno", lambda: errno.EINVAL)
        assert "cannot exchange two directories" in run(*words, status=2).err
    assert files_of(out) == before
    for more in (["--dry-run"], ["--iceberg", "a.b.c"], []):
        place = [] if "--iceberg" in more else ["memory://x/out"] if not more else [str(out)]
        refused = run("--tier", golden_tier, "export", *place, *more, "--join", status=2)
        assert "--join is for a run into a directory" in refused.err


def test_each_broker_is_joined_apart(tmp_path: Path) -> None:
    tier, out = tier_of_three(tmp_path), tmp_path / "out"
    words = ("--tier", tier, "export", out, "--broker", "*", "--processes", "1")
    run(*words, "--split-bytes", "200")
    files = list(out.rglob("*.parquet"))
    assert len(files) > len({one.parent for one in files})
    run(*words, "--join")
    files = list(out.rglob("*.parquet"))
    assert len(files) == len({one.parent for one in files}) == len(MESSAGES) + 1
    assert len(rows_in(out)) == sum(MESSAGES.values()) + 1
    assert run(*words, "--join").err == ""
