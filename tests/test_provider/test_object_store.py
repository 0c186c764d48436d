"""Stores over fsspec: what file systems do wrong, and how long they may take."""

import asyncio
from pathlib import Path
from random import Random

import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from provider.errors import (
    AlreadyExists,
    Closed,
    Denied,
    NotFound,
    OutOfRange,
    Unauthorized,
    Unavailable,
)
from provider.object.files import error_text, files_of, make_directory
from provider.object.store import FsspecStore, open_object_store
from provider.options import ObjectOptions
from provider.ranges import ByteRange
from provider.stores.verified import probe
from provider.testing.manual_clock import ManualClock, settle
from tests.support.fsspec_files import AsyncMemory, Cutting, Overwriting, Paging, Refusing, Whole


def store_over(
    file_system: AsyncFileSystem,
    clock: ManualClock | None = None,
    options: ObjectOptions | None = None,
) -> FsspecStore:
    return FsspecStore(
        files_of(file_system), "/bucket/tier", clock=clock or ManualClock(), options=options
    )


@pytest.mark.parametrize("kind", [AsyncMemory, Refusing, Paging])
async def test_a_storage_that_keeps_its_word_passes_the_probe(kind: type[AsyncMemory]) -> None:
    store = store_over(kind())
    await probe(store, rng=Random(1))
    assert await store.list("") == []


async def test_a_storage_that_overwrites_is_refused_and_named() -> None:
    with pytest.raises(Denied, match="ignores create-if-absent"):
        await probe(store_over(Overwriting()), rng=Random(1))


async def test_a_storage_that_ignores_ranges_is_refused() -> None:
    with pytest.raises(Denied, match="more than was asked for"):
        await probe(store_over(Whole()), rng=Random(1))


def test_a_file_system_that_looks_before_it_writes_is_refused() -> None:
    with pytest.raises(Denied, match="LocalFileSystem has no create-if-absent of its own"):
        files_of(LocalFileSystem())
    with pytest.raises(Denied, match="AsyncFileSystem has no create-if-absent of its own"):
        files_of(AsyncFileSystem(asynchronous=True))


def test_a_file_system_that_lacks_a_call_is_refused() -> None:
    class WriteOnly(AsyncFileSystem):
        async def _pipe_file(self, path: str, value: object, mode: str = "", **_: object) -> None:
            return None

    with pytest.raises(Denied, match="WriteOnly lacks _cat_file, _info, _ls"):
        files_of(WriteOnly(asynchronous=True))


async def test_a_read_that_was_cut_is_no_end_of_an_object() -> None:
    store = store_over(Cutting())
    await store.create("a", [b"abc"])
    with pytest.raises(Unavailable, match="1 bytes of 2"):
        await store.read("a", ByteRange(0, 2))
    with pytest.raises(OutOfRange, match="ends at 3"):
        await store.read("a", ByteRange(1, 4))


async def test_a_range_beyond_the_end_may_be_an_error_of_the_storage() -> None:
    files = AsyncMemory()
    store = store_over(files)
    await store.create("a", [b"abc"])
    files.failing["read"] = OSError(22, "Requested Range Not Satisfiable")
    with pytest.raises(OutOfRange, match="ends at 3"):
        await store.read("a", ByteRange(3, 4))
    with pytest.raises(Unavailable, match="Not Satisfiable"):
        await store.read("a", ByteRange(2, 3))


async def test_a_request_that_hangs_is_given_up_and_frees_its_slot() -> None:
    clock, files = ManualClock(), AsyncMemory()
    options = ObjectOptions(requests_max=1, uploads_max=1, request_s_max=10, bytes_per_s_min=1)
    store = store_over(files, clock, options)
    await store.create("a", [b"abc"])
    files.stalled.clear()
    async with asyncio.TaskGroup() as group:
        reads = [group.create_task(_outcome(store, number)) for number in range(3)]
        await settle()
        assert [call for call in files.calls if call[0] == "read"] == [("read", "/bucket/tier/a")]
        await clock.advance(12.9)
        assert not reads[0].done()
        await clock.advance(0.2)
        assert reads[0].done()
        files.stalled.set()
        await settle()
    silent = "the storage does not answer in time: TimeoutError: no answer within 13 s"
    assert reads[0].result() == silent
    assert [read.result() for read in reads[1:]] == ["abc", "abc"]
    assert clock.sleeping == 0


async def _outcome(store: FsspecStore, _number: int) -> str:
    try:
        return bytes(await store.read("a", ByteRange(0, 3))).decode()
    except Unavailable as error:
        return str(error)


async def test_uploads_that_hang_keep_no_reader_waiting() -> None:
    clock, files = ManualClock(), AsyncMemory()
    options = ObjectOptions(requests_max=1, uploads_max=1)
    store = store_over(files, clock, options)
    await store.create("a", [b"abc"])
    files.stalled.clear()
    async with asyncio.TaskGroup() as group:
        create = group.create_task(store.create("b", [b"x"]))
        await settle()
        files.stalled.set()
        assert bytes(await store.read("a")) == b"abc"
        await create
    assert bytes(await store.read("b")) == b"x"


@pytest.mark.parametrize(
    ("raised", "verdict", "sentence"),
    [
        (PermissionError(13, "Forbidden"), Unauthorized, "the storage refuses us: Forbidden"),
        (OSError(95, "no such request"), Denied, "the storage refuses us: no such request"),
        (ConnectionResetError(104, "reset"), Unavailable, "the storage failed"),
        (TimeoutError(), Unavailable, "does not answer in time"),
        (FileNotFoundError(2, "NoSuchBucket"), Denied, "/bucket/tier does not exist"),
        (FileExistsError(17, "x"), AlreadyExists, "the name is taken"),
    ],
)
async def test_what_a_create_raises_is_a_verdict(
    raised: Exception, verdict: type[Exception], sentence: str
) -> None:
    files = AsyncMemory()
    files.failing["create"] = raised
    with pytest.raises(verdict, match=sentence) as caught:
        await store_over(files).create("a", [b"x"])
    assert caught.value.__cause__ is raised


async def test_a_bug_is_no_verdict() -> None:
    files = AsyncMemory()
    files.failing["create"] = TypeError("a bug")
    with pytest.raises(TypeError, match="a bug"):
        await store_over(files).create("a", [b"x"])


class ClientError(Exception):
    """As client libraries have, which are no `OSError`."""


async def test_an_error_of_a_client_library_is_an_outage() -> None:
    files = AsyncMemory()
    files.failing["list"] = ClientError("SlowDown")
    with pytest.raises(Unavailable, match="ClientError: SlowDown"):
        await store_over(files).list("")


@pytest.mark.parametrize(
    "text",
    [
        "GET https://b.example/k?X-Amz-Signature=s3cr3t&a=1 failed",
        "Authorization: AWS4-HMAC-SHA256 s3cr3t",
        "aws_secret_access_key='s3cr3t'",
        "https://me:s3cr3t@example/",
        "SecretKey=s3cr3t, Token: s3cr3t",
        "session_token=s3cr3t",
    ],
)
def test_what_is_told_of_an_error_has_no_secret(text: str) -> None:
    assert "s3cr3t" not in error_text(OSError(5, text))


def test_what_is_told_of_an_error_is_one_short_line() -> None:
    assert error_text(OSError(5, "<html>\n" + "x" * 900)) == f"<html> {'x' * 493}..."


async def test_a_listing_of_pages_in_any_order_is_sorted() -> None:
    files = Paging()
    store = store_over(files)
    names = ["a/1", "a-b", "b", "a/2", "c/@tmp-1"]
    for name in names[:4]:
        await store.create(name, [b"x"])
    files.inner.pipe_file("/bucket/tier/c/@tmp-1", b"half")
    assert [entry.name for entry in await store.list("")] == ["a-b", "a/1", "a/2", "b"]
    assert [entry.name for entry in await store.list("a", after="a-b")] == ["a/1", "a/2"]
    assert [entry.name for entry in await store.list("a/1")] == ["a/1"]


async def test_failed_deletions_are_told_and_all_others_made() -> None:
    files = Paging()
    store = store_over(files)
    for name in ("a", "b", "c"):
        await store.create(name, [b"x"])
    files.undeletable["/bucket/tier/a"] = PermissionError(13, "AccessDenied")
    with pytest.raises(Denied, match="1 of 4 objects are not deleted: the storage refuses us"):
        await store.delete(["a", "b", "c", "absent"])
    assert [entry.name for entry in await store.list("")] == ["a"]
    files.undeletable["/bucket/tier/b"] = OSError(5, "InternalError")
    with pytest.raises(Unavailable, match=r"2 of 2 objects .* InternalError"):
        await store.delete(["a", "b"])


async def test_a_thousand_objects_are_deleted_at_once() -> None:
    files = Paging()
    await store_over(files).delete([f"n{number}" for number in range(2001)])
    assert [call for call, _ in files.calls] == ["delete"] * 3


@pytest.mark.parametrize("kind", ["list", "create"])
async def test_a_bucket_that_is_not_there_is_named(kind: str) -> None:
    files = Paging()
    store = store_over(files)
    await store.create("a", [b"x"])
    files.failing[kind] = FileNotFoundError(2, "there is no bucket 'bucket'")
    calls = [store.list("")] if kind == "list" else [store.create("b", [b"x"])]
    for call in calls:
        with pytest.raises(Denied, match=r"/bucket/tier does not exist.* no bucket 'bucket'"):
            await call


async def test_directories_are_what_has_objects_below_it() -> None:
    for files in (AsyncMemory(), Paging()):
        store = store_over(files)
        assert await store.directories() == []
        for name in ("x/1", "y/deep/1", "z"):
            await store.create(name, [b"x"])
        assert await store.directories() == ["x", "y"]
        assert await store.directories("y") == ["deep"]
        assert await store.directories("absent") == []


async def test_what_holds_objects_is_told_from_what_held_them() -> None:
    for files in (AsyncMemory(), Paging()):
        store = store_over(files)
        for name in ("x/1", "y/1"):
            await store.create(name, [b"x"])
        await store.delete(["x/1"])
        asked = store.meter.total
        assert [await store.holds(prefix) for prefix in ("x/", "y/", "z/", "")] == [
            False, True, False, True,
        ]  # fmt: skip
        assert store.meter.total - asked == 4


async def test_closing_closes_the_file_system_once() -> None:
    files = Paging()
    store = store_over(files)
    await store.close()
    assert files.is_closed
    await store.close()
    with pytest.raises(Closed):
        await store.directories()


async def test_a_listing_that_may_not_see_a_directory_is_an_error(tmp_path: Path) -> None:
    """A stock walk leaves out what it may not read."""
    files = AsyncMemory()
    store = store_over(files)
    await store.create("a/1", [b"x"])
    files.failing["list"] = PermissionError(13, "AccessDenied")
    with pytest.raises(Denied, match="refuses us"):
        await store.list("a/")


async def test_a_name_that_is_taken_by_a_directory_of_files_is_refused(tmp_path: Path) -> None:
    store = open_object_store(f"file://{tmp_path}/tier")
    await store.create("a", [b"x"])
    with pytest.raises(Denied):
        await store.create("a/b", [b"x"])
    with pytest.raises(NotFound):
        await store.read("a/b")


def test_a_url_of_which_nobody_knows_is_refused() -> None:
    with pytest.raises(Denied, match="nothing is installed for nosuch:// URLs"):
        open_object_store("nosuch://bucket")


async def test_what_another_process_left_half_made_is_not_there(tmp_path: Path) -> None:
    store = open_object_store(f"file://{tmp_path}")
    await store.create("a/1", [b"x"])
    (tmp_path / "a" / "@tmp-0").write_bytes(b"half")
    assert [entry.name for entry in await store.list("")] == ["a/1"]


def test_a_directory_that_another_thread_makes_meanwhile_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, is_dir = tmp_path / "made" / "below", Path.is_dir

    def looked_at_too_early(path: Path) -> bool:
        found = is_dir(path)
        if path == wanted and not found:
            wanted.mkdir(parents=True)  # by another thread, right after the look
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", looked_at_too_early)
        make_directory(wanted)
    assert wanted.is_dir()


def test_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(NotADirectoryError, match="a file stands where a directory is needed"):
            make_directory(path)
