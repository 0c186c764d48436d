"""What is on disk costs no request, is never believed without its checksum, and is bounded."""

import asyncio
import errno
import os
import socket
import stat
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provider.disk_cache.files import (
    BLOCK_BYTES,
    HELD_LINK,
    CacheFiles,
    DiskThread,
    EntryName,
    key_of,
    on_disk_bytes,
)
from provider.disk_cache.store import DiskCachedStore
from provider.errors import Closed, NotFound
from provider.object_store import Buffer
from provider.options import DiskCacheOptions
from provider.ranges import ByteRange
from provider.testing.faulty import FaultyObjectStore
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from tests.support.keeping_store import KeepingStore
from tests.support.patience import HANGS_AFTER_S, Patience, until

BODY = Random(7).randbytes(3 * BLOCK_BYTES + 17)
KEY = key_of("s3://b", "@parts/x")


class Cached:
    """A store with two objects, behind caches in one directory."""

    def __init__(self, directory: Path, **options: float) -> None:
        self.directory = directory
        self.clock = ManualClock()
        self.memory = MemoryStore()
        self.stores: list[FaultyObjectStore] = []
        self.options = DiskCacheOptions(**options)  # pyright: ignore[reportArgumentType]

    async def open(self, scope: str = "s3://b") -> DiskCachedStore:
        if not self.stores:
            for name in ("@parts/x", "grows"):
                await self.memory.create(name, [BODY])
        self.stores.append(FaultyObjectStore(self.memory.another_client()))
        return KeepingStore(
            self.stores[-1], self.directory, scope=scope, clock=self.clock, options=self.options,
            is_immutable=lambda name: name.startswith("@parts/"),
        )  # fmt: skip

    @property
    def asked(self) -> int:
        """Bytes that were asked for below."""
        return sum(store.bytes["read_many"] + store.bytes["read"] for store in self.stores)

    @property
    def calls(self) -> int:
        """Calls below that read."""
        return sum(store.calls["read_many"] + store.calls["read"] for store in self.stores)

    def files(self) -> list[Path]:
        return sorted(path for path in self.directory.rglob("*") if path.is_file())


def disk_bytes(path: Path) -> int:
    """Disk space of a file, also before its blocks are allocated."""
    return max(path.stat().st_blocks * 512, on_disk_bytes(path.stat().st_size))


@pytest.fixture
def cached(tmp_path: Path) -> Cached:
    return Cached(tmp_path / "cache")


async def test_a_hit_makes_no_request_also_after_a_restart(cached: Cached) -> None:
    for number in range(2):
        store = await cached.open()
        for start, end in ((0, 100), (50, 90), (0, 1), (99, 100)):
            found = await store.read("@parts/x", ByteRange(start, end))
            assert bytes(found) == BODY[start:end]
        assert cached.asked == 100
        assert (store.hits, store.misses) == ((3, 1) if not number else (4, 0))
        await store.close()
        with pytest.raises(Closed):
            await store.read("@parts/x", ByteRange(0, 1))


async def test_only_holes_are_asked_for_in_one_call(cached: Cached) -> None:
    store = await cached.open()
    await store.read_many([("@parts/x", ByteRange(10, 20)), ("@parts/x", ByteRange(40, 50))])
    before = cached.calls
    found = await store.read_many([("@parts/x", ByteRange(0, 60)), ("grows", ByteRange(3, 5))])
    assert [bytes(one) for one in found] == [BODY[:60], BODY[3:5]]
    assert cached.calls == before + 1
    assert cached.asked == 20 + 40 + 2
    assert bytes(await store.read("@parts/x", ByteRange(0, 60))) == BODY[:60]
    assert cached.asked == 62
    await store.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(st.tuples(st.integers(0, len(BODY) - 1), st.integers(1, len(BODY))), max_size=12))
async def test_any_ranges_read_back_and_no_byte_is_asked_for_twice(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]]
) -> None:
    cached = Cached(tmp_path_factory.mktemp("cache"))
    store, known = await cached.open(), bytearray(len(BODY))
    for start, length in spans:
        end = min(len(BODY), start + length)
        assert bytes(await store.read("@parts/x", ByteRange(start, end))) == BODY[start:end]
        known[start:end] = b"\1" * (end - start)
        assert cached.asked == sum(known)
    await store.close()


async def test_what_may_change_and_other_stores_are_not_mixed_up(cached: Cached) -> None:
    store, other = await cached.open(), await cached.open("s3://other")
    for _ in range(2):
        await store.read("grows", ByteRange(0, 10))
    assert (cached.asked, cached.files()) == (20, [])
    for one in (store, other):
        await one.read("@parts/x", ByteRange(0, 10))
    assert cached.asked == 40
    with pytest.raises(NotFound):
        await store.read("@parts/absent", ByteRange(0, 1))
    for one in (store, other):
        await one.close()


@pytest.mark.parametrize("place", ["head", "sums", "data", "cut", "empty", "longer"])
async def test_a_damaged_file_is_a_miss_and_goes(cached: Cached, place: str) -> None:
    store = await cached.open()
    await store.read("@parts/x", ByteRange(0, len(BODY)))
    (file,) = cached.files()
    raw = bytearray(file.read_bytes())
    entry = EntryName.parse(file.name)
    assert entry is not None
    at = {"head": 9, "sums": entry.data_at - 3, "data": entry.data_at + BLOCK_BYTES + 5}
    if place in at:
        raw[at[place]] ^= 4
    file.write_bytes({"cut": raw[:-1], "empty": b"", "longer": raw + b"x"}.get(place, raw))
    if place != "longer":
        found = await store.read("@parts/x", ByteRange(BLOCK_BYTES, len(BODY)))
        assert bytes(found) == BODY[BLOCK_BYTES:]
        assert cached.asked == 2 * len(BODY) - BLOCK_BYTES
        assert store.files.damaged == 1
    await store.close()
    again = await cached.open()
    assert bytes(await again.read("@parts/x", ByteRange(5, 9))) == BODY[5:9]
    await again.close()
    assert all(bytes(path.read_bytes()) != bytes(raw) for path in cached.files())


async def test_the_longest_unused_go_first_and_the_bound_holds(tmp_path: Path) -> None:
    size = on_disk_bytes(EntryName(KEY, 0, 1_000).file_bytes)
    cached = Cached(tmp_path / "cache", bytes_max=5 * size)
    store = await cached.open()
    for number in range(8):
        await store.read("@parts/x", ByteRange(number * 1_000, (number + 1) * 1_000))
        await store.read("@parts/x", ByteRange(0, 1))
        assert store.files.bytes_held <= 5 * size
        assert sum(map(disk_bytes, cached.files())) == store.files.bytes_held
    assert {EntryName.parse(path.name).start for path in cached.files()} == {  # pyright: ignore[reportOptionalMemberAccess]
        0, 4_000, 5_000, 6_000, 7_000,
    }  # fmt: skip
    await store.read("@parts/x", ByteRange(10_000, 10_000 + 5 * size))
    assert len(cached.files()) == 5, "what is longer than the bound is not kept"
    await store.close()


async def test_two_processes_in_one_directory_keep_the_bound_together(tmp_path: Path) -> None:
    size = on_disk_bytes(EntryName(KEY, 0, 1_000).file_bytes)
    cached = Cached(tmp_path / "cache", bytes_max=16 * size)
    one, other = await cached.open(), await cached.open()
    for number in range(40):
        store = (one, other)[number % 2]
        part = ByteRange(number * 1_000, (number + 1) * 1_000)
        assert bytes(await store.read("@parts/x", part)) == BODY[part.start : part.end]
        assert sum(map(disk_bytes, cached.files())) <= 16 * size
    for start in range(0, 40_000, 1_500):
        part = ByteRange(start, start + 1_500)
        for store in (one, other):
            assert bytes(await store.read("@parts/x", part)) == BODY[part.start : part.end]
    await one.close()
    await other.close()


async def test_a_full_disk_pauses_writing_and_reading_goes_on(
    cached: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, write, full = await cached.open(), os.write, True

    def on_disk(number: int, data: bytes) -> int:
        if full:
            write(number, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "no space left on device")
        return write(number, data)

    monkeypatch.setattr("provider.disk_cache.files.os.write", on_disk)
    for _ in range(3):
        assert bytes(await store.read("@parts/x", ByteRange(0, 9))) == BODY[:9]
    assert (store.files.failed_writes, cached.files()) == (1, [])
    full = False
    await cached.clock.advance(61)
    for _ in range(3):
        await store.read("@parts/x", ByteRange(0, 9))
    assert (cached.asked, len(cached.files())) == (4 * 9, 1)
    await store.close()


async def test_a_directory_that_cannot_be_used_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file")
    cached = Cached(tmp_path / "cache")
    store = await cached.open()
    assert bytes(await store.read("@parts/x", ByteRange(0, 9))) == BODY[:9]
    await store.close()


async def test_what_a_dead_writer_left_goes_and_strangers_stay(cached: Cached) -> None:
    store = await cached.open()
    await store.read("@parts/x", ByteRange(0, 9))
    await store.close()
    old, new, stranger = (cached.directory / name for name in ("@tmp-1-0", "@tmp-2-0", "notes"))
    for path in (old, new, stranger):
        path.write_bytes(b"x")
    now_s = cached.clock.now_ms() / 1000
    os.utime(old, (now_s - 4_000, now_s - 4_000))
    os.utime(new, (now_s - 3_000, now_s - 3_000))
    again = await cached.open()
    await again.read("@parts/x", ByteRange(0, 9))
    assert cached.asked == 9
    assert not old.exists()
    assert new.exists()
    assert stranger.exists()
    await again.close()


async def test_a_read_that_outlives_its_store_still_ends_with_its_bytes(cached: Cached) -> None:
    store = await cached.open()
    inner, begun, goes_on = cached.stores[-1], asyncio.Event(), asyncio.Event()
    read_many = inner.read_many

    async def held(wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        found = await read_many(wanted)
        begun.set()
        await goes_on.wait()
        return found

    inner.read_many = held  # pyright: ignore[reportAttributeAccessIssue] - stands in for it
    read = asyncio.create_task(store.read("@parts/x", ByteRange(0, 9)))
    await begun.wait()
    await store.close()
    goes_on.set()
    assert bytes(await read) == BODY[:9]


async def test_closing_cancels_no_call_that_waits_for_the_disk(
    cached: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, goes_on, get = await cached.open(), Event(), CacheFiles.get

    def held(self: CacheFiles, key: str, wanted: ByteRange) -> list[tuple[ByteRange, Buffer]]:
        assert goes_on.wait(HANGS_AFTER_S)
        return get(self, key, wanted)

    monkeypatch.setattr(CacheFiles, "get", held)
    reads = [asyncio.create_task(store.read("@parts/x", ByteRange(0, 9))) for _ in range(3)]
    await settle()
    await store.close()
    goes_on.set()
    ended = await asyncio.gather(*reads, return_exceptions=True)
    assert {type(one) for one in ended} == {Closed}


async def test_what_a_killed_process_with_our_id_left_stops_no_write(cached: Cached) -> None:
    cached.directory.mkdir()
    (cached.directory / f"@tmp-{os.getpid()}-0").write_bytes(b"left")
    store = await cached.open()
    await store.read("@parts/x", ByteRange(0, 9))
    assert store.files.failed_writes == 0
    await store.close()


WRITES = 20
WRITES_MAX = 2_000
KILLED = """
import os
import sys
from pathlib import Path
from provider.clock import SystemClock
from provider.disk_cache.files import CacheFiles
from provider.options import DiskCacheOptions

parent = int(sys.argv[3])
files = CacheFiles(Path(sys.argv[1]), DiskCacheOptions(), SystemClock())
for number in range(int(sys.argv[4])):
    if os.getppid() != parent:
        break
    files.put(sys.argv[2], number * 100_000, bytes([number % 251]) * 100_000)
    print(number, flush=True)
"""


async def test_a_process_that_is_killed_while_it_writes_leaves_nothing_that_is_believed(
    tmp_path: Path,
) -> None:
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", KILLED, str(tmp_path), KEY, str(os.getpid()), str(WRITES_MAX),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert writer.stdout is not None
    try:
        for _ in range(WRITES):
            assert await writer.stdout.readline()
    finally:
        writer.kill()
        await writer.communicate()
    files = CacheFiles(tmp_path, DiskCacheOptions(), ManualClock())
    found = await asyncio.to_thread(files.get, KEY, ByteRange(0, 1 << 40))
    assert len(found) >= WRITES - 1
    for part, data in found:
        assert bytes(data) == bytes([part.start // 100_000 % 251]) * part.length
    assert files.damaged == 0


KINDS = ["fifo", "writable", "link", "directory", "socket"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_file_of_another_kind_or_mode_is_a_miss_and_delays_nothing(
    cached: Cached, kind: str
) -> None:
    store = await cached.open()
    await store.read("@parts/x", ByteRange(0, 9))
    (file,) = cached.files()
    right = file.read_bytes()
    if kind != "writable":
        file.unlink()
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "writable":
        file.chmod(0o666)
    elif kind == "link":
        (cached.directory.parent / "other").write_bytes(right)
        file.symlink_to(cached.directory.parent / "other")
    elif kind == "directory":
        file.mkdir()
    else:
        with socket.socket(socket.AF_UNIX) as server, in_directory(file.parent):
            server.bind(file.name)
    for name in ("x", "x"):
        found = await asyncio.wait_for(store.read(f"@parts/{name}", ByteRange(0, 5)), HANGS_AFTER_S)
        assert bytes(found) == BODY[:5]
    assert cached.asked >= 9 + 5
    await store.close()
    again = await cached.open()
    assert bytes(await again.read("@parts/x", ByteRange(0, 9))) == BODY[:9]
    await again.close()


@contextmanager
def in_directory(directory: Path) -> Iterator[None]:
    """The working directory, for a socket with a short path."""
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.mark.parametrize("owner", ["file", "directory"])
async def test_what_another_user_owns_is_not_served(
    cached: Cached, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await cached.open()
    await store.read("@parts/x", ByteRange(0, 9))
    await store.close()
    real, changed = os.fstat, os.stat
    ours = os.geteuid()

    def foreign(status: os.stat_result) -> os.stat_result:
        fields = list(status)
        fields[stat.ST_UID] = ours + 1
        return os.stat_result(fields)

    if owner == "file":
        monkeypatch.setattr("provider.disk_cache.files.os.fstat", lambda at: foreign(real(at)))
    else:
        monkeypatch.setattr("provider.disk_cache.files.os.stat", lambda at: foreign(changed(at)))
    again = await cached.open()
    for _ in range(2):
        assert bytes(await again.read("@parts/x", ByteRange(0, 9))) == BODY[:9]
    assert cached.asked == 3 * 9
    await again.close()


async def test_a_directory_where_others_may_write_is_not_used(
    cached: Cached, caplog: pytest.LogCaptureFixture
) -> None:
    cached.directory.mkdir()
    cached.directory.chmod(0o777)
    store = await cached.open()
    for _ in range(2):
        assert bytes(await store.read("@parts/x", ByteRange(0, 9))) == BODY[:9]
    assert (cached.asked, cached.files()) == (2 * 9, [])
    assert len(caplog.records) == 1
    assert "is not used as a disk cache" in caplog.text
    await store.close()


@pytest.mark.parametrize("failing", [errno.EROFS, errno.ENOSPC, errno.EPERM])
async def test_a_time_of_use_that_cannot_be_written_is_no_damage(
    cached: Cached, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await cached.open()
    await store.read("@parts/x", ByteRange(0, 9))

    def refused(_: int) -> None:
        raise OSError(failing, os.strerror(failing))

    monkeypatch.setattr("provider.disk_cache.files.os.utime", refused)
    for _ in range(3):
        assert bytes(await store.read("@parts/x", ByteRange(0, 9))) == BODY[:9]
    assert (cached.asked, store.files.damaged, len(cached.files())) == (9, 0, 1)
    await store.close()


async def test_a_file_that_cannot_be_read_is_a_miss_and_stays(
    cached: Cached, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await cached.open()
    await store.read("@parts/x", ByteRange(0, 9))

    def failed(*_: int) -> bytes:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr("provider.disk_cache.files.os.pread", failed)
        assert bytes(await store.read("@parts/x", ByteRange(0, 9))) == BODY[:9]
    assert (store.files.damaged, len(cached.files())) == (0, 1)
    await store.close()


class Timed(MemoryStore):
    """A storage whose answers take a time of the clock."""

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        super().__init__()
        self._answers = clock, seconds

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        clock, seconds = self._answers
        await clock.sleep(seconds)
        return await super().read_many(wanted)


@pytest.mark.parametrize("verb", ["get", "put"])
async def test_a_disk_that_hangs_delays_one_read_by_the_time_of_an_uncached_one(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, goes_on, real = ManualClock(), Event(), getattr(CacheFiles, verb)
    takes_s = 0.5
    inner = Timed(clock, takes_s)
    for name in ("@parts/x", "@parts/y"):
        await inner.create(name, [BODY])
    store = KeepingStore(
        inner, tmp_path / "cache", scope="s3://b", is_immutable=lambda _: True, clock=clock,
        options=DiskCacheOptions(),
    )  # fmt: skip

    async def took_s(name: str, start: int) -> float:
        began_s = clock.monotonic_s()
        read = asyncio.ensure_future(store.read(name, ByteRange(start, start + 9)))
        while not read.done():
            await settle()
            if not read.done() and not goes_on.is_set():
                await until_due(clock, read)
        assert bytes(await read) == BODY[start : start + 9]
        return clock.monotonic_s() - began_s

    async def until_due(clock: ManualClock, read: "asyncio.Future[Buffer]") -> None:
        await asyncio.sleep(0.002)  # the thread of the disk may answer in real time
        if not read.done():
            await clock.advance(takes_s / 10)

    await took_s("@parts/x", 0)

    def held(self: CacheFiles, *given: object) -> object:
        assert goes_on.wait(HANGS_AFTER_S)
        return real(self, *given)

    monkeypatch.setattr(CacheFiles, verb, held)
    assert await took_s("@parts/y", 0) <= 2.2 * takes_s
    for number in range(1, 4):
        assert await took_s("@parts/y", 100 * number) <= 1.2 * takes_s
    goes_on.set()
    await store.close()


async def test_calls_behind_one_that_hangs_are_given_up_and_later_ones_are_served() -> None:
    clock, goes_on = ManualClock(), Event()
    thread, ran = DiskThread(clock), []

    def hang() -> str:
        assert goes_on.wait(HANGS_AFTER_S)
        return "late"

    first = asyncio.ensure_future(thread.call(hang, 1.0))
    await settle()
    behind = [asyncio.ensure_future(thread.call(lambda: ran.append(1), 2.0)) for _ in range(3)]
    await settle()
    behind[0].cancel()
    await clock.advance(1.0)
    assert await first is None
    assert await thread.call(lambda: ran.append(2), 1.0) is None
    assert not behind[1].done(), "it waits as long as it was told to"
    await clock.advance(1.0)
    assert await asyncio.gather(*behind[1:]) == [None, None]
    goes_on.set()
    await until(lambda: thread._late is None, Patience("the late call does not end"))
    assert await thread.call(lambda: "in time", 1.0) == "in time"
    assert ran == [1, 1, 1], "they went on in the thread"
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0, 1.0)
    thread.end()


async def test_calls_of_the_disk_share_one_task_that_watches_them(cached: Cached) -> None:
    store, made = await cached.open(), list[str]()

    def make(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **more: Any
    ) -> "asyncio.Task[Any]":
        made.append(work.__name__)
        return asyncio.Task(work, loop=loop, **more)

    await store.read("@parts/x", ByteRange(0, 9))
    loop: Any = asyncio.get_running_loop()
    loop.set_task_factory(make)
    for _ in range(20):
        await store.read("@parts/x", ByteRange(0, 9))
    assert store.hits == 20
    assert made == []
    await store.close()


MANY = """
import sys
from pathlib import Path
from provider.clock import SystemClock
from provider.disk_cache.files import CacheFiles
from provider.disk_cache.files import key_of
from provider.options import DiskCacheOptions
from provider.ranges import ByteRange

directory, number, bound, length, count = sys.argv[1], *map(int, sys.argv[2:])
files = CacheFiles(Path(directory), DiskCacheOptions(bytes_max=bound), SystemClock())
key = key_of("s3://b", f"@parts/{number}")
files.get(key, ByteRange(0, 1))
print("open", flush=True)
sys.stdin.readline()
for at in range(count):
    files.put(key, at * length, bytes(length))
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("length", "count"), [(256 << 10, 12), (20, 100)])
async def test_the_bound_holds_for_all_processes_in_blocks(
    tmp_path: Path, length: int, count: int
) -> None:
    bound = (8 << 20) if length > 1000 else (1 << 20)
    numbers = [str(one) for one in (bound, length, count)]
    writers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", MANY, str(tmp_path), str(number), *numbers,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )
        for number in range(8)
    ]  # fmt: skip
    for wanted in (b"open\n", b"done\n"):
        for writer in writers:
            assert writer.stdout is not None
            assert await writer.stdout.readline() == wanted
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.write(b"\n")
    for writer in writers:
        await writer.communicate()
        assert writer.returncode == 0
    kept = Cached(tmp_path).files()
    assert bound // 2 < sum(map(disk_bytes, kept)) <= bound
    held = int((tmp_path / HELD_LINK).readlink().name)
    assert sum(map(disk_bytes, kept)) <= held <= bound


async def test_a_shared_count_that_is_lost_or_wrong_is_counted_again(cached: Cached) -> None:
    for wrong in (None, "many", str(1 << 60)):
        store = await cached.open()
        if wrong is not None:
            (cached.directory / HELD_LINK).unlink()
            (cached.directory / HELD_LINK).symlink_to(wrong)
        start = 100 * len(cached.files())
        await store.read("@parts/x", ByteRange(start, start + 9))
        await store.close()
        again = await cached.open()
        await again.read("@parts/x", ByteRange(start, start + 9))
        await again.close()
        held = int((cached.directory / HELD_LINK).readlink().name)
        assert held == sum(map(disk_bytes, cached.files()))
    assert len(cached.files()) == 3
