"""The room that a directory as a store keeps for its objects."""

import errno
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from provider.errors import Unavailable
from provider.object_store import Append
from provider.options import PosixOptions
from provider.posix.store import RESERVE_NAME, PosixStore
from tests.support.full_disk import SmallDisk

KIB = 1 << 10
OPTIONS = PosixOptions(reserve_bytes=32 * KIB)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def disk(root: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(root, 128 * KIB)
    with disk.mounted():
        yield disk


@pytest.fixture
async def store(root: Path, disk: SmallDisk) -> AsyncIterator[PosixStore]:
    store = PosixStore(root, options=OPTIONS)
    yield store
    await store.close()


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def leave_a_reserve(root: Path, size_bytes: int) -> None:
    root.mkdir()
    (root / RESERVE_NAME).write_bytes(bytes(size_bytes))


async def test_data_leaves_the_reserve_alone_and_an_object_may_take_it(
    store: PosixStore, root: Path
) -> None:
    await store.append([Append("log", 0, (b"x" * 96 * KIB,))])
    with pytest.raises(Unavailable, match="the file system is full; free space"):
        await store.append([Append("log", 96 * KIB, (b"x",))])
    await store.create("entry", [b"y" * 8 * KIB])
    assert not (root / RESERVE_NAME).exists()
    assert (root / "entry").stat().st_size == 8 * KIB


async def test_no_data_is_written_while_the_reserve_is_not_whole(
    store: PosixStore, root: Path, disk: SmallDisk
) -> None:
    await store.append([Append("log", 0, (b"x" * 96 * KIB,))])
    await store.create("entry", [b"y" * 8 * KIB])  # 24 KiB are free now
    for _ in range(2):
        with pytest.raises(Unavailable, match="full"):
            await store.append([Append("log", 96 * KIB, (b"x",))])
    assert (root / "log").stat().st_size == 96 * KIB
    disk.size_bytes += 64 * KIB
    await store.append([Append("log", 96 * KIB, (b"x",))])
    assert (root / RESERVE_NAME).stat().st_size == 32 * KIB


async def test_a_round_that_does_not_fit_takes_nothing(store: PosixStore, root: Path) -> None:
    await store.append([Append("a", 0, (b"x" * 10 * KIB,)), Append("b", 0, (b"y" * KIB,))])
    with pytest.raises(Unavailable, match="full"):
        await store.append(
            [Append("b", KIB, (b"y" * 20 * KIB,)), Append("a", 10 * KIB, (b"x" * 99 * KIB,))]
        )
    assert (root / "a").read_bytes() == b"x" * 10 * KIB
    assert (root / "b").read_bytes() == b"y" * KIB
    await store.append([Append("a", 10 * KIB, (b"x" * 40 * KIB,))])


async def test_an_object_that_does_not_fit_into_the_reserve_either_is_told(
    store: PosixStore, root: Path
) -> None:
    await store.append([Append("log", 0, (b"x" * 96 * KIB,))])
    with pytest.raises(Unavailable, match="full"):
        await store.create("entry", [b"y" * 40 * KIB])
    await store.create("entry", [b"y" * 32 * KIB])
    assert names_in(root) == ["entry", "log"]


async def test_the_reserve_is_no_object_and_goes_with_the_store(
    store: PosixStore, root: Path
) -> None:
    await store.append([Append("log", 0, (b"x",))])
    assert (root / RESERVE_NAME).stat().st_blocks * 512 >= 32 * KIB
    assert [entry.name for entry in await store.list("")] == ["log"]
    await store.close()
    assert names_in(root) == ["log"]


async def test_a_reserve_that_a_dead_process_left_is_taken_over(
    store: PosixStore, root: Path
) -> None:
    leave_a_reserve(root, 100 * KIB)
    await store.append([Append("log", 0, (b"x" * 80 * KIB,))])
    assert (root / RESERVE_NAME).stat().st_size == 32 * KIB


@pytest.mark.parametrize("options", [PosixOptions(reserve_bytes=0), OPTIONS])
async def test_a_store_that_only_creates_and_reads_keeps_no_reserve(
    root: Path, options: PosixOptions
) -> None:
    store = PosixStore(root, options=options)
    await store.create("object", [b"x"])
    await store.read("object")
    assert names_in(root) == ["object"]
    await store.close()


async def test_a_file_system_that_cannot_allocate_keeps_none(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(fd: int, start: int, length: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", refusing)
    store = PosixStore(root, options=OPTIONS)
    for position in range(2):
        await store.append([Append("log", position, (b"x",))])
    assert names_in(root) == ["log"]
    await store.close()


async def test_a_full_disk_at_the_sync_is_given_back_too(
    store: PosixStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.append([Append("log", 0, (b"x" * KIB,))])
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        monkeypatch.setattr(os, "fdatasync", real)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    with pytest.raises(Unavailable, match="quota"):
        await store.append([Append("log", KIB, (b"x" * 9 * KIB,))])
    assert (root / "log").stat().st_size == KIB
    await store.append([Append("log", KIB, (b"x" * 9 * KIB,))])
    assert (root / "log").stat().st_size == 10 * KIB
