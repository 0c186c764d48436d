"""A restore that ends early: no store is there before the end, and the next run completes it."""

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from container.errors import InUse
from provider.errors import Denied, Unavailable
from tests.support.cli import run
from tests.support.fake_broker import FakeBroker
from tests.support.hot_store import appender_at
from tests.support.restored import (
    OPTIONS,
    A,
    B,
    broker,
    files,
    own_contents,
    records,
    restored,
    small_groups,
    tier,
    topics_of,
)
from tieredstore.config.sources import ConfigError
from tieredstore.following.directory.layout import open_layout
from tieredstore.following.options import HotLogOptions
from tieredstore.offline.jobs import restore_group as group_job
from tieredstore.offline.jobs import restore_plan
from tieredstore.offline.jobs import restore_store as job
from tieredstore.offline.jobs.engine import OneProcess, Piece
from tieredstore.offline.jobs.restore_plan import Wanted
from tieredstore.offline.jobs.restore_store import Ledger

__all__ = ["broker", "small_groups", "tier"]  # fixtures


class Ending(OneProcess):
    """An engine whose process is killed after some items."""

    def __init__(self, count: int) -> None:
        self.count = count

    def map_group(self, items: Sequence[Any], *words: Any, **more: Any) -> list[Piece]:
        super().map_group(items[: self.count], *words, **more)
        raise KeyboardInterrupt


def test_an_ended_run_is_no_store_and_the_next_one_completes_it(
    tier: list[str], tmp_path: Path
) -> None:
    restored(tier, whole := tmp_path / "whole")
    root = tmp_path / "restored"
    for count in (0, 2, 1):
        with pytest.raises(KeyboardInterrupt):
            restored(tier, root, engine=Ending(count))
        with pytest.raises(Denied, match="restore"):
            open_layout(root, HotLogOptions())
        with pytest.raises(Denied, match="restore"), appender_at(root, OPTIONS):
            pass
        marker = root / "commitlog" / f"{0:020}"
        assert 0 < marker.stat().st_size != OPTIONS.commit_log_bytes, "a Java broker starts"
    report = restored(tier, root)
    assert report.groups_before == 3
    assert files(root) == files(whole)
    with pytest.raises(ConfigError, match="not empty"):
        restored(tier, root)


@pytest.mark.parametrize("name", ["fsync", "ftruncate", "unlink", "pwritev", "mkdir", "replace"])
def test_a_run_that_ends_at_any_call_is_completed(
    name: str, tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored(tier, whole := tmp_path / "whole")
    called = getattr(os, name)
    for number in range(1000):
        left = number * 3

        def failing(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
            return called(*arguments, **more)

        root = tmp_path / f"restored-{number}"
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing)
            try:
                restored(tier, root)
            except KeyboardInterrupt:
                assert (
                    not root.exists() or list(root.iterdir()) == [] or (root / "restoring").exists()
                )
            else:
                assert files(root) == files(whole)
                break
        restored(tier, root)
        assert files(root) == files(whole)
        shutil.rmtree(root)


def test_a_worker_of_a_killed_run_writes_nothing_into_another_plan(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, locked = tmp_path / "restored", fcntl.flock
    marker = root / "commitlog" / f"{0:020}"
    seen: list[bool] = []

    def is_free() -> bool:
        with marker.open("rb") as other:
            try:
                locked(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def writing(*arguments: Any) -> Any:
        seen.append(is_free())
        return written(*arguments)

    written = group_job.write_units
    with monkeypatch.context() as patch:
        patch.setattr(group_job, "write_units", writing)
        with pytest.raises(KeyboardInterrupt):
            restored(tier, root, engine=Ending(2))
    assert seen
    assert not any(seen), "a worker locks the marker"
    before = files(root)
    monkeypatch.setattr(fcntl, "flock", lambda file, how: locked(file, how | fcntl.LOCK_NB))
    with marker.open("rb") as worker:
        locked(worker, fcntl.LOCK_SH)
        with pytest.raises(BlockingIOError):
            restored(tier, root, wanted=Wanted(frozenset({"B"})))
        assert files(root) == before
    assert restored(tier, root, wanted=Wanted(frozenset({"B"}))).messages == 75


def test_a_changed_tier_begins_the_directory_again(
    tier: list[str], broker: FakeBroker, tmp_path: Path
) -> None:
    root = tmp_path / "restored"
    with pytest.raises(KeyboardInterrupt):
        restored(tier, root, engine=Ending(2))
    broker.put(*A, b"one more")
    run(*tier, "tier", broker.directory)
    report = restored(tier, root)
    assert (report.groups_before, report.messages) == (0, 226)


def test_a_run_with_other_arguments_just_before_the_end_gives_what_it_reports(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, of_b = tmp_path / "restored", Wanted(frozenset({"B"}))
    unlink = Path.unlink

    def ending(path: Path, *, missing_ok: bool = False) -> None:
        if path == root / "restoring":
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", ending)
        with pytest.raises(KeyboardInterrupt):
            restored(tier, root)
        with pytest.raises(KeyboardInterrupt):
            restored(tier, root, offsets={"A@g": {0: 7}}, topics={"topicConfigTable": {"C": {}}})
    assert json.loads((root / "config" / "consumerOffset.json").read_bytes())["offsetTable"]
    assert "C" in topics_of(root)
    truncate = os.ftruncate

    def truncated(fd: int, length: int) -> None:
        truncate(fd, length)
        raise KeyboardInterrupt

    for module, name, call in ((os, "ftruncate", truncated), (shutil, "rmtree", _interrupted)):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, call)
            with pytest.raises(KeyboardInterrupt):
                restored(tier, root, wanted=of_b)
    report = restored(tier, root, wanted=of_b)
    assert {queue for queue, found in own_contents(root).items() if found} == {B}
    assert report.messages == 75


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_one_process_restores_into_a_directory(tier: list[str], tmp_path: Path) -> None:
    with Ledger(root := tmp_path / "restored"), pytest.raises(InUse, match="another process"):
        restored(tier, root)
    assert restored(tier, root).messages == 225


def test_what_cannot_be_restored_is_refused_with_the_reason(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("")
    assert "is not empty" in run(*tier, "restore", other, status=2).err
    said = run(*tier, "restore", tmp_path / "new", "--topic", "None", status=2).err
    assert "no topic None" in said
    said = run(*tier, "restore", tmp_path / "new", "--topics", "A,", status=2).err
    assert "this is no topic: it is empty" in said
    small = [*tier, "-D", "mappedFileSizeCommitLog=1024"]
    assert "make it larger" in run(*small, "restore", tmp_path / "small", status=2).err
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("file", "dangling"):
        place = other / "file" if name == "file" else tmp_path / name
        assert "is no directory" in run(*tier, "restore", place, status=2).err
    inside = tmp_path / "tier" / "restored"
    assert "lie inside one another" in run(*tier, "restore", inside, status=2).err
    assert not inside.exists()
    monkeypatch.setattr(job, "SPARE_BYTES", 1 << 60)
    with pytest.raises(Unavailable, match="bytes free"):
        restored(tier, tmp_path / "full")


@pytest.mark.parametrize("lacking", ["bytes", "inodes", ""])
def test_a_disk_is_refused_that_has_no_room_for_all_files(
    lacking: str, tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored(tier, whole := tmp_path / "whole")
    below = [*(whole / "commitlog").rglob("*"), *(whole / "consumequeue").rglob("*")]
    fillers = 47 % 20  # before the first message of B, in its file of 20 units
    written = (225 + fillers) * 20
    written += sum(one.size for one in records(whole, OPTIONS.commit_log_bytes))
    values = {"f_frsize": 1, "f_bavail": written + len(below) * 4096}
    values |= {"f_files": 9, "f_favail": len(below)}
    if lacking:
        values["f_bavail" if lacking == "bytes" else "f_favail"] -= 1
    fake = SimpleNamespace(**values)
    monkeypatch.setattr(os, "statvfs", lambda _: fake)
    if lacking:
        with pytest.raises(Unavailable, match=f"{lacking} free, and [0-9,]+ are needed"):
            restored(tier, tmp_path / "new")
    else:
        restored(tier, tmp_path / "new")


def test_a_directory_with_a_file_of_the_ledgers_name_is_not_emptied(
    tier: list[str], tmp_path: Path
) -> None:
    root = tmp_path / "other"
    (root / "commitlog").mkdir(parents=True)
    (root / "restoring").write_text("")
    log = root / "commitlog" / f"{0:020}.log"
    log.write_text("messages")
    with pytest.raises(ConfigError, match="not empty"):
        restored(tier, root)
    assert log.read_text() == "messages"
    log.unlink()
    assert restored(tier, root).messages == 225


def test_a_line_of_the_ledger_that_a_full_disk_cut_off_counts_for_nothing(
    tier: list[str], tmp_path: Path
) -> None:
    restored(tier, whole := tmp_path / "whole")
    root = tmp_path / "restored"
    with pytest.raises(KeyboardInterrupt):
        restored(tier, root, engine=Ending(1))
    with (root / "restoring").open("ab") as ledger:
        ledger.write(b"1")
    with pytest.raises(KeyboardInterrupt):
        restored(tier, root, engine=Ending(1))
    assert restored(tier, root).groups_before == 1
    assert files(root) == files(whole)


def test_a_disk_that_is_full_in_the_middle_is_one_sentence_and_the_next_run_continues(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored(tier, whole := tmp_path / "whole")
    written, left = os.pwritev, 2

    def failing(*arguments: Any) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(*arguments)

    root = tmp_path / "restored"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing)
        said = run(*tier, "restore", root, "--processes", "1", status=None)
    assert said.status == 3
    assert "the file system is full" in said.err
    assert said.err.count("\n") == 1
    assert restored(tier, root).groups_before == 2
    assert files(root) == files(whole)


def test_a_full_directory_of_temporary_files_is_named(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restore_plan, "WRITTEN_ROWS", 1)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: FileIO("/dev/full", "r+"))
    said = run(*tier, "restore", tmp_path / "restored", "--processes", "1", status=None)
    assert said.status == 3
    assert f"the file system is full; free space to continue ({tempfile.gettempdir()})" in said.err


def test_a_file_that_cannot_be_synced_begins_the_directory_again(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports a write that is lost once, and the next descriptor syncs without error."""
    restored(tier, whole := tmp_path / "whole")
    root, called = tmp_path / "restored", os.fsync

    def failing(fd: int) -> None:
        if "consumequeue" in Path(f"/proc/self/fd/{fd}").readlink().parts:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        called(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="Input/output error"):
            restored(tier, root)
    for path in (root / "commitlog").glob("*[1-9]*"):
        path.write_bytes(bytes(path.stat().st_size))
    assert restored(tier, root).groups_before == 0
    assert files(root) == files(whole)


def test_the_ledger_is_not_durable_before_the_file_without_which_it_is_complete(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, called = tmp_path / "restored", os.fsync
    durable: list[str] = []

    def noting(fd: int) -> None:
        durable.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        called(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", noting)
        restored(tier, root)
    assert {"restored", "commitlog"} <= set(durable[: durable.index("restoring")])


def test_a_boot_without_a_name_is_not_the_same_one(
    tier: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "boot_id", lambda: "")
    root = tmp_path / "restored"
    with pytest.raises(KeyboardInterrupt):
        restored(tier, root, engine=Ending(2))
    assert restored(tier, root).groups_before == 0
