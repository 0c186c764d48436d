"""Files and directories that somebody moves, restores or links by hand while a store is open."""

import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from provider.errors import NotFound, OutOfRange, Unavailable
from provider.object_store import Append
from provider.posix import files
from provider.posix.store import PosixStore
from provider.ranges import ByteRange


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
async def store(root: Path) -> AsyncIterator[PosixStore]:
    store = PosixStore(root)
    yield store
    await store.close()


def restore_a_copy(path: Path) -> Path:
    """What an operator does: `mv F F.bad; cp good F`. Returns the file that was moved."""
    aside = path.with_name(f"{path.name}.bad")
    path.rename(aside)
    shutil.copyfile(aside, path)
    return aside


def during_the_next_sync(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        monkeypatch.setattr(os, "fdatasync", real)
        real(fd)
        happens()

    monkeypatch.setattr(os, "fdatasync", fdatasync)


async def test_a_read_at_once_is_of_the_file_that_has_the_name(
    store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provider.posix.store.read_now", files.read_waiting)  # tmpfs cannot
    await store.create("q/a", [b"0123"])
    await store.read("q/a")
    assert bytes(store.read_now("q/a", 1, 2) or b"") == b"12"
    aside = restore_a_copy(root / "q/a")
    assert store.read_now("q/a", 1, 2) is None
    assert bytes(store.read_now("q/a", 1, 2, follows=True) or b"") == b"12"
    aside.unlink()
    await store.read("q/a")
    assert bytes(store.read_now("q/a", 1, 2) or b"") == b"12"
    (root / "q/a").unlink()
    assert store.read_now("q/a", 1, 2) is None


async def test_d3_what_is_acknowledged_lies_in_the_file_that_has_the_name(
    store: PosixStore, root: Path
) -> None:
    await store.append([Append("q/log", 0, (b"first ",))])
    aside = restore_a_copy(root / "q/log")
    await store.append([Append("q/log", 6, (b"second",))])
    assert (root / "q/log").read_bytes() == b"first second"
    assert aside.read_bytes() == b"first "


async def test_d3_a_file_that_is_replaced_within_a_round_is_not_acknowledged(
    store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.append([Append("q/log", 0, (b"first ",))])
    shutil.copyfile(root / "q/log", root / "good")

    def replace() -> None:
        (root / "q/log").rename(root / "q/bad")
        shutil.copyfile(root / "good", root / "q/log")

    during_the_next_sync(monkeypatch, replace)
    with pytest.raises(Unavailable, match=r"moved or replaced.*\(q/log at 6\)"):
        await store.append([Append("q/log", 6, (b"second",))])
    assert (root / "q/log").read_bytes() == b"first "
    await store.append([Append("q/log", 6, (b"second",))])
    assert (root / "q/log").read_bytes() == b"first second"


async def test_d3_a_file_that_is_removed_within_a_round_is_not_acknowledged(
    store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    during_the_next_sync(monkeypatch, (root / "q/log").unlink)
    with pytest.raises(Unavailable, match="removed"):
        await store.append([Append("q/log", 0, (b"first",), new=True)])
    await store.append([Append("q/log", 0, (b"first",))])
    during_the_next_sync(monkeypatch, (root / "q/log").unlink)
    with pytest.raises(Unavailable, match="removed"):
        await store.append([Append("q/log", 5, (b"second",))])
    with pytest.raises(NotFound):
        await store.append([Append("q/log", 5, (b"second",))])


async def test_an_older_copy_that_is_restored_is_too_short_and_not_written(
    store: PosixStore, root: Path
) -> None:
    await store.append([Append("q/log", 0, (b"first ",))])
    shutil.copyfile(root / "q/log", root / "backup")
    await store.append([Append("q/log", 6, (b"second",))])
    (root / "q/log").rename(root / "q/bad")
    shutil.copyfile(root / "backup", root / "q/log")
    with pytest.raises(OutOfRange, match="ends at 6"):
        await store.append([Append("q/log", 12, (b"third",))])
    assert (root / "q/log").read_bytes() == b"first "


async def test_hard_linked_backups_hide_no_deletion(store: PosixStore, root: Path) -> None:
    await store.append([Append("q/log", 0, (b"first",))])
    assert bytes(await store.read("q/log", ByteRange(0, 5))) == b"first"
    (root / "backup").hardlink_to(root / "q/log")
    (root / "q/log").unlink()
    with pytest.raises(NotFound):
        await store.read("q/log", ByteRange(0, 5))
    with pytest.raises(NotFound):
        await store.append([Append("q/log", 5, (b"second",))])
    with pytest.raises(NotFound):
        await store.size("q/log")
    assert (root / "backup").read_bytes() == b"first"


async def test_a_restored_file_is_read_although_the_damaged_one_is_open(
    store: PosixStore, root: Path
) -> None:
    await store.create("q/object", [b"damaged"])
    for _ in range(2):
        assert bytes(await store.read("q/object", ByteRange(0, 7))) == b"damaged"
    (root / "q/object").rename(root / "q/bad")
    (root / "q/object").write_bytes(b"perfect")
    assert bytes(await store.read("q/object", ByteRange(0, 7))) == b"perfect"
    assert [bytes(part) for part in await store.read_many([("q/object", ByteRange(0, 7))])] == [
        b"perfect"
    ]


async def test_the_name_of_a_file_that_was_restored_is_made_durable(
    store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = synced_directories(monkeypatch)
    await store.append([Append("q/log", 0, (b"1",))])
    synced.clear()
    await store.append([Append("q/log", 1, (b"2",))])
    assert synced == []
    restore_a_copy(root / "q/log")
    await store.append([Append("q/log", 2, (b"3",))])
    assert str(root / "q") in synced
    synced.clear()
    await store.append([Append("q/log", 3, (b"4",))])
    assert synced == []


async def test_a_file_of_an_earlier_process_has_its_name_made_durable_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "q").mkdir(parents=True)
    (root / "q/log").write_bytes(b"restored before we began")
    store = PosixStore(root)
    synced = synced_directories(monkeypatch)
    await store.append([Append("q/log", 24, (b"!",))])
    # In any order: nothing is acknowledged before all are synced, and each is synced anew if one
    # fails.
    assert [synced.count(str(path)) for path in (root, root / "q")] == [1, 1]
    synced.clear()
    await store.append([Append("q/log", 25, (b"!",))])
    assert synced == []
    await store.close()


@pytest.mark.parametrize("kind", ["moved", "empty", "copied"])
async def test_d3_a_directory_that_is_not_the_one_we_used_is_told_before_it_is_relied_on(
    store: PosixStore, root: Path, kind: str
) -> None:
    await store.create("@journal/1", [b"one"])
    (root / "@journal").rename(root / "away")
    if kind == "empty":
        (root / "@journal").mkdir()
    elif kind == "copied":
        shutil.copytree(root / "away", root / "@journal")
    with pytest.raises(Unavailable, match=r"removed just now|moved or replaced"):
        await store.create("@journal/2", [b"two"])
    await store.create("@journal/3", [b"three"])  # what is there by now counts; the journal checks
    assert (root / "@journal/3").read_bytes() == b"three"
    assert not (root / "away/3").exists()


async def test_the_chain_above_the_root_is_made_durable_although_a_dead_process_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "tier/cluster/broker"
    root.mkdir(parents=True)  # by a process that died before its sync
    store = PosixStore(root)
    synced = synced_directories(monkeypatch)
    await store.create("a", [b"x"])
    above = [str(tmp_path / "tier/cluster"), str(tmp_path / "tier"), str(tmp_path)]
    assert synced[:3] == above
    synced.clear()
    await store.create("b", [b"x"])
    assert not set(synced) & set(above)
    await store.close()


async def test_a_directory_above_the_root_that_we_may_not_open_ends_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "closed/tier"
    root.mkdir(parents=True)
    real = os.open

    def refusing(path: object, flags: int, *others: int) -> int:
        if str(path) == str(tmp_path / "closed") and flags & os.O_DIRECTORY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, flags, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refusing)
    store = PosixStore(root)
    await store.create("a", [b"x"])
    await store.close()
    assert (root / "a").read_bytes() == b"x"


async def test_a_round_costs_two_stats_of_each_files_path(
    store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"q{number}/log" for number in range(5)]
    for position in range(2):
        await store.append([Append(name, position, (b"x",)) for name in names])
    real, calls = os.stat, list[str]()

    def counting(path: object, *others: object, **options: object) -> os.stat_result:
        if str(path).endswith("/log"):
            calls.append(str(path))
        return real(path, *others, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", counting)
    await store.append([Append(name, 2, (b"x",)) for name in names])
    assert sorted(calls) == sorted(2 * [str(root / name) for name in names])


@pytest.mark.parametrize(
    ("number", "fails"),
    [(errno.EIO, True), (errno.ENOSPC, True), (errno.ENOSYS, False), (errno.EINVAL, False)],
)
async def test_what_the_kernel_says_while_writing_back_is_not_ignored(
    store: PosixStore, monkeypatch: pytest.MonkeyPatch, number: int, *, fails: bool
) -> None:
    def sync_file_range(*_: int) -> int:
        files.ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(files, "_sync_file_range", sync_file_range)
    round_of_two = [Append("a", 0, (b"x",)), Append("b", 0, (b"y",))]
    if fails:
        with pytest.raises(Unavailable):
            await store.append(round_of_two)
    else:
        await store.append(round_of_two)


def synced_directories(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the directories that are synced from now on, in order."""
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.is_dir():
            synced.append(str(path))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    return synced
