"""What a directory as a store does beyond the contract."""

import asyncio
import errno
import os
import resource
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from provider.errors import AlreadyExists, Closed, Denied, NotFound, OutOfRange, Unavailable
from provider.object_store import Append
from provider.options import PosixOptions
from provider.posix.directories import may_hold
from provider.posix.store import PosixStore
from provider.ranges import ByteRange
from provider.testing.manual_clock import ManualClock


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[PosixStore]:
    store = PosixStore(tmp_path / "root", options=PosixOptions(reserve_bytes=0))
    yield store
    await store.close()


def descriptors_below(path: Path) -> list[str]:
    """What this process has open below `path`."""
    found: list[str] = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:
            continue
        if target.startswith(str(path)):
            found.append(target)
    return found


def names_in(folder: Path) -> list[str]:
    """What lies in a directory."""
    return [path.name for path in folder.iterdir()]


def files_below(folder: Path) -> set[str]:
    """The files below a directory, by their paths from it."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_an_object_is_a_plain_file_of_its_name(store: PosixStore, tmp_path: Path) -> None:
    await store.create("a/b", [b"one"])
    await store.append([Append("a/c", 0, (b"two",))])
    assert files_below(tmp_path / "root") == {"a/b", "a/c"}, "no temporary file stays"
    assert (tmp_path / "root/a/b").read_bytes() == b"one"


async def test_a_refused_create_leaves_no_temporary_file(store: PosixStore, tmp_path: Path) -> None:
    await store.create("a", [b"one"])
    with pytest.raises(AlreadyExists):
        await store.create("a", [b"two"])
    assert names_in(tmp_path / "root") == ["a"]


async def test_temporary_files_are_not_listed_and_old_ones_are_swept(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name, changed_s in (("@tmp-1-0", 1_000), ("@tmp-2-0", 9_000)):
        (tmp_path / "d" / name).write_bytes(b"left over")
        os.utime(tmp_path / "d" / name, (changed_s, changed_s))
    store = PosixStore(tmp_path, clock=ManualClock(10_000_000))
    assert await store.list("") == []
    await store.create("d/x", [b""])
    assert sorted(names_in(tmp_path / "d")) == ["@tmp-2-0", "x"]
    await store.close()


async def test_every_new_entry_has_its_chain_of_directories_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.is_relative_to(tmp_path):
            synced.append(str(path.relative_to(tmp_path)))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    (tmp_path / "root/q").mkdir(parents=True)  # by a process that died before its sync
    store = PosixStore(tmp_path / "root")
    await store.append([Append("q/0/log", 0, (b"x",)), Append("q/0/units", 0, (b"y",))])
    assert sorted(synced) == [".", "root", "root/q", "root/q/0"], "each once, in any order"
    synced.clear()
    await store.append([Append("q/0/log", 1, (b"x",)), Append("q/0/units", 1, (b"y",))])
    assert synced == []
    await store.create("q/0/whole", [b"z"])
    assert synced[0].startswith("root/q/0/@tmp-")
    assert synced[1:] == ["root/q/0"]
    synced.clear()
    with pytest.raises(AlreadyExists):
        await store.create("q/0/whole", [b"z"])
    assert synced[1:] == ["root/q/0"], "what AlreadyExists reports is durable (P9)"
    await store.close()


async def test_a_file_that_lost_its_end_is_out_of_range_for_reads_and_appends(
    store: PosixStore, tmp_path: Path
) -> None:
    await store.append([Append("f", 0, (b"x" * 100,))])
    assert len(await store.read("f", ByteRange(0, 100))) == 100
    os.truncate(tmp_path / "root/f", 60)
    with pytest.raises(OutOfRange, match="ends at 60"):
        await store.read("f", ByteRange(0, 100))
    with pytest.raises(OutOfRange, match="ends at 60"):
        await store.append([Append("f", 100, (b"y",))])
    assert (tmp_path / "root/f").stat().st_size == 60


async def test_a_file_replaced_behind_our_back_is_opened_again(
    store: PosixStore, tmp_path: Path
) -> None:
    await store.create("f", [b"old"])
    for _ in range(2):
        assert bytes(await store.read("f", ByteRange(0, 3))) == b"old"
    (tmp_path / "root/f").unlink()
    (tmp_path / "root/f").write_bytes(b"new")
    assert bytes(await store.read("f", ByteRange(0, 3))) == b"new"
    (tmp_path / "root/f").unlink()
    with pytest.raises(NotFound):
        await store.read("f", ByteRange(0, 3))


async def test_a_directory_removed_behind_our_back_is_made_again(
    store: PosixStore, tmp_path: Path
) -> None:
    await store.create("d/a", [b"x"])
    (tmp_path / "root/d/a").unlink()
    (tmp_path / "root/d").rmdir()
    with pytest.raises(Unavailable, match="removed"):
        await store.create("d/b", [b"y"])
    await store.create("d/b", [b"y"])
    assert bytes(await store.read("d/b")) == b"y"


async def test_no_call_leaves_the_root_through_a_symbolic_link(
    store: PosixStore, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/file").write_bytes(b"theirs")
    (tmp_path / "elsewhere/below").mkdir()
    (tmp_path / "elsewhere/below/file").write_bytes(b"theirs, too")
    (tmp_path / "root").mkdir()
    (tmp_path / "root/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root/file").symlink_to(tmp_path / "elsewhere/file")
    for call in (
        store.create("link/x", [b"x"]),
        store.append([Append("link/x", 0, (b"x",))]),
        store.append([Append("link/file", 6, (b"x",))]),
        store.append([Append("file", 0, (b"x",))]),
        store.read("file"),
        store.read("link/file"),
        store.read("link/file", ByteRange(0, 3)),
        store.read_many([("link/below/file", ByteRange(0, 3))]),
        store.size("link/file"),
        store.size("link/below/file"),
        store.delete(["link/file"]),
    ):
        with pytest.raises(Denied, match="symbolic link"):
            await call
    assert [entry.name for entry in await store.list("")] == []
    assert sorted(names_in(tmp_path / "elsewhere")) == ["below", "file"]
    assert (tmp_path / "elsewhere/file").read_bytes() == b"theirs"
    for gone in ("link/none", "none/file"):
        with pytest.raises(Denied if gone.startswith("link") else NotFound):
            await store.size(gone)


async def test_the_root_itself_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = PosixStore(tmp_path / "link")
    await store.create("a/b", [b"x"])
    await store.close()
    assert (tmp_path / "real/a/b").read_bytes() == b"x"


async def test_a_root_that_cannot_be_made_is_denied() -> None:
    for root in ("/proc/nothing", "/proc/nothing/below"):
        store = PosixStore(Path(root))
        with pytest.raises(Denied, match="not permitted"):
            await store.create("a", [b"x"])
        with pytest.raises(Denied, match="not permitted"):
            await store.append([Append("a", 0, (b"x",))])
        with pytest.raises(Denied, match="not permitted"):
            await store.register("@lock")
        await store.close()


async def test_an_object_where_a_directory_is_needed_is_denied(store: PosixStore) -> None:
    await store.create("a", [b"x"])
    for call in (store.create("a/b", [b"y"]), store.append([Append("a/b", 0, (b"y",))])):
        with pytest.raises(Denied):
            await call


async def test_open_files_stay_within_their_bound_and_close_frees_all(tmp_path: Path) -> None:
    store = PosixStore(tmp_path, options=PosixOptions(files_open_max=8))
    names = [f"q/{number}" for number in range(100)]
    for round_number in range(3):
        await store.append([Append(name, round_number, (b"x",)) for name in names])
        for name in names:
            await store.read(name, ByteRange(0, round_number + 1))
        assert len(descriptors_below(tmp_path)) <= 8 + 1  # the root
    assert [entry.size_bytes for entry in await store.list("")] == [3] * 100
    await store.close()
    assert descriptors_below(tmp_path) == []


async def test_a_file_that_comes_again_is_not_removed_by_a_cancelled_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PosixStore(tmp_path)
    await store.append([Append("f", 0, (b"old",), new=True)])
    entered, go_on = threading.Event(), threading.Event()
    real, calls = os.unlink, list[str]()

    def unlink(path: str) -> None:
        calls.append(path)
        if len(calls) == 1:
            entered.set()
            go_on.wait(10)
        real(path)

    monkeypatch.setattr(os, "unlink", unlink)
    first = asyncio.ensure_future(store.delete(["f"]))
    await asyncio.to_thread(entered.wait, 10)
    first.cancel()
    await asyncio.wait([first])
    again = asyncio.ensure_future(store.delete(["f"]))
    await asyncio.wait([again], timeout=0.05)
    assert not again.done(), "the first one has not landed"
    go_on.set()
    await again
    await store.append([Append("f", 0, (b"anew",), new=True)])
    await store.close()
    assert (tmp_path / "f").read_bytes() == b"anew"


async def test_cancelled_calls_leak_nothing_and_close_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PosixStore(tmp_path)
    entered, go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def fdatasync(fd: int) -> None:
        entered.set()
        go_on.wait(10)
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    first = asyncio.ensure_future(store.append([Append("f", 0, (b"first",))]))
    await asyncio.to_thread(entered.wait, 10)
    waiting = asyncio.ensure_future(store.append([Append("g", 0, (b"never begun",))]))
    await asyncio.sleep(0)
    first.cancel()
    waiting.cancel()
    await asyncio.wait([first, waiting])
    second = asyncio.ensure_future(store.append([Append("f", 0, (b"second",))]))
    await asyncio.sleep(0)
    assert not second.done(), "rounds land in the order of their calls"
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    with pytest.raises(Closed):
        await store.read("f")
    assert not closing.done()
    go_on.set()
    await second
    await closing
    assert (tmp_path / "f").read_bytes() == b"second"
    assert not (tmp_path / "g").exists()
    assert descriptors_below(tmp_path) == []


def can_tell_what_is_cached(path: Path) -> bool:
    """Whether the file system offers RWF_NOWAIT; tmpfs does not."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


async def test_a_cached_read_needs_no_thread_where_the_file_system_can_tell(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.append([Append("f", 0, (b"x" * 1000,))])
    await store.read("f", ByteRange(0, 1))
    expected_hops = 0 if can_tell_what_is_cached(tmp_path / "root/f") else 2
    loop = asyncio.get_running_loop()
    real, hops = loop.run_in_executor, 0

    def counting(executor: Any, work: Any) -> Any:
        nonlocal hops
        hops += 1
        return real(executor, work)

    monkeypatch.setattr(loop, "run_in_executor", counting)
    assert len(await store.read("f", ByteRange(10, 1000))) == 990
    assert len(await store.read_many([("f", ByteRange(0, 5)), ("f", ByteRange(5, 9))])) == 2
    assert hops == expected_hops


@pytest.mark.parametrize(
    ("folder", "prefix", "after", "expected"),
    [
        ("a/", "", "", True),
        ("a/", "a", "", True),
        ("a/", "a/b/c", "", True),
        ("b/", "a", "", False),
        ("a/", "", "a", True),
        ("a/", "", "a/b", True),
        ("a/", "", "a0", False),
        ("a/", "", "b", False),
        ("a/b/", "", "a/a", True),
    ],
)
def test_only_directories_that_may_hold_a_match_are_visited(
    folder: str, prefix: str, after: str, *, expected: bool
) -> None:
    assert may_hold(folder, prefix, after) is expected


class Swept(list[bytes]):
    """Buffers of an object whose temporary file goes while they are written.

    A process whose clock jumped ahead takes it for one that a dead writer left.
    """

    def __init__(self, folder: Path, *buffers: bytes) -> None:
        super().__init__(buffers)
        self._folder = folder

    def __iter__(self) -> Iterator[bytes]:
        for path in self._folder.glob("@tmp-*"):
            path.unlink()
        return super().__iter__()


async def test_a_temporary_file_that_another_process_sweeps_away_is_no_verdict_on_the_object(
    store: PosixStore, tmp_path: Path
) -> None:
    with pytest.raises(Unavailable, match="removed"):
        await store.create("a/b", Swept(tmp_path / "root" / "a", b"one"))
    await store.create("a/b", [b"one"])
    assert files_below(tmp_path / "root") == {"a/b"}


async def test_a_new_directory_below_one_that_was_removed_is_made_at_the_next_call(
    store: PosixStore, tmp_path: Path
) -> None:
    await store.create("a/b/one", [b"one"])
    shutil.rmtree(tmp_path / "root/a")
    with pytest.raises(Unavailable, match="removed"):
        await store.append([Append("a/c/two", 0, (b"two",))])
    await store.append([Append("a/c/two", 0, (b"two",))])
    assert files_below(tmp_path / "root") == {"a/c/two"}


@pytest.mark.parametrize("is_replaced", [False, True], ids=["away", "replaced"])
async def test_a_root_that_is_away_or_another_one_takes_nothing_until_it_is_back(
    store: PosixStore, tmp_path: Path, *, is_replaced: bool
) -> None:
    root, away = tmp_path / "root", tmp_path / "away"
    await store.append([Append("a/grows", 0, (b"one",))])
    await store.create("a/one", [b"one"])
    root.rename(away)
    if is_replaced:  # an empty mount point, say
        root.mkdir()
    for _ in range(2):
        with pytest.raises(Unavailable, match="unmounted"):
            await store.create("a/two", [b"two"])
        with pytest.raises(Unavailable, match="unmounted"):
            await store.append([Append("b/new", 0, (b"two",))])
        with pytest.raises(Unavailable, match="unmounted"):
            await store.append([Append("a/grows", 3, (b"two",))])
        with pytest.raises(Unavailable, match="unmounted"):
            await store.delete(["a/one"])
        with pytest.raises(Unavailable, match="unmounted"):
            await store.register("@lock")
    assert not (root.exists() and names_in(root)), "nothing was written to a strange directory"
    if is_replaced:
        root.rmdir()
    away.rename(root)
    await store.create("a/two", [b"two"])
    await store.append([Append("a/grows", 3, (b"two",)), Append("b/new", 0, (b"two",))])
    assert files_below(root) == {"a/grows", "a/one", "a/two", "b/new"}
    await store.close()
    assert descriptors_below(tmp_path) == []


@pytest.mark.parametrize("failing", range(6))
async def test_a_round_of_which_one_sync_fails_is_not_durable(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    real = os.fdatasync
    failures = [f"f{failing}"]

    def fdatasync(fd: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{fd}")).name in failures:  # noqa: PTH115 - no path
            failures.clear()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    pieces = [Append(f"f{n}", 0, (b"whole",), new=True) for n in range(6)]
    with pytest.raises(Unavailable) as told:
        await store.append(pieces)
    assert told.value.path == f"f{failing}"
    assert not failures
    assert not [
        path for path in descriptors_below(tmp_path) if "/f" in path.removeprefix(str(tmp_path))
    ]
    await store.append(pieces)
    assert await store.read(f"f{failing}") == b"whole"


async def test_a_store_keeps_fewer_files_open_where_the_process_may_open_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    store = PosixStore(tmp_path)
    names = [f"q/{number}" for number in range(40)]
    await store.append([Append(name, 0, (b"x",)) for name in names])
    for name in names:
        await store.read(name)
    assert len(descriptors_below(tmp_path)) <= 10 + 1  # the root
    await store.close()
