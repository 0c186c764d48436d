"""S3 as an fsspec file system, with conditional writes, exact ranges and deadlines."""

# ruff: noqa: ANN401 - as fsspec has it
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUntypedBaseClass=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportIncompatibleMethodOverride=false

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractBufferedFile

from provider.object.files import NoPlace
from provider.object.files import Page as PathPage
from provider.s3.client import Clients, Credentials, Listed, ListingFailed, Page, check_process
from provider.s3.errors import (
    ChainCredentials,
    Failure,
    Operation,
    credentials_of,
    failed,
    os_errors,
)
from provider.s3.options import S3Options, check_proxy, endpoint_of, region_of

if TYPE_CHECKING:
    from obstore import ObjectMeta


def parse(path: str) -> tuple[str, str]:
    """Split a path into bucket and key. The key of a bucket itself is empty. Pure.

    Raises:
        FileNotFoundError: the path names no bucket.
    """
    bucket, _, key = path.partition("/")
    if not bucket:
        raise FileNotFoundError(2, "a path begins with a bucket", path)
    return bucket, key


def directory_of(prefix: str) -> str:
    """Return the part of a key's prefix before its last slash. Pure."""
    return prefix.rpartition("/")[0]


def start_after(prefix: str, after: str) -> str:
    """Return the key to start a listing after, so that no key above `after` is missed. Pure.

    The listing may include keys at or below `after`, or without `prefix`, which the caller skips.
    The last character is dropped because some services (SeaweedFS 4) skip all keys in a directory
    of exactly this name.
    """
    return max(_without_last(prefix), _without_last(after))


def _without_last(key: str) -> str:
    return key[:-1] if len(key.rpartition("/")[2]) > 1 else directory_of(key)


def is_name(key: str) -> bool:
    """Whether a key is a valid path of a file system. Pure."""
    return not any(part in {"", ".", ".."} for part in key.split("/"))


Part = bytes | bytearray | memoryview
Info = dict[str, Any]


def payload(value: Part | Sequence[Part]) -> tuple[Any, int]:
    """Return the argument of the client's upload, without a copy, and its length in bytes."""
    parts = (value,) if isinstance(value, bytes | bytearray | memoryview) else tuple(value)
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    size_bytes = sum(view.nbytes for view in views)
    if not views:
        return b"", 0
    return (views[0] if len(views) == 1 else iter(views)), size_bytes


def info_of(path: str, found: "ObjectMeta") -> Info:
    """Return fsspec's info of a file, with e-tag and time under their names in S3. Pure."""
    kept: Mapping[str, Any] = found
    return {
        "name": path,
        "size": kept["size"],
        "type": "file",
        "ETag": kept["e_tag"],
        "LastModified": kept["last_modified"],
    }


def info_of_listed(bucket: str, found: "Listed") -> Info:
    """Return fsspec's info of a listed file. Pure."""
    return {
        "name": f"{bucket}/{found.key}",
        "size": found.size,
        "type": "file",
        "ETag": found.e_tag,
        "LastModified": datetime.fromisoformat(found.modified) if found.modified else None,
    }


def directory(path: str) -> Info:
    """Return fsspec's info of a directory. S3 has none; names imply them. Pure."""
    return {"name": path, "size": 0, "type": "directory"}


# fsspec has no types.


class WholeFile(AbstractBufferedFile):
    """Result of `open`. A written file is buffered in memory and stored by one `pipe_file`.

    The object therefore appears whole when the file is closed, or never. Mode `xb` is
    create-if-absent.
    """

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.cat_file(self.path, start, end)

    def _initiate_upload(self) -> None:
        """Send nothing before the file is closed."""

    def _upload_chunk(self, final: bool = False) -> bool:  # noqa: FBT001, FBT002 - fsspec's
        if not final:
            return False  # the buffer grows
        mode: dict[str, Any] = {"mode": "create"} if "x" in self.mode else {}
        self.fs.pipe_file(self.path, self.buffer.getvalue(), **mode)
        return True


# fsspec has no types, and what it asks for begins with an underscore.


PROTOCOL: Final = "tieredstore-s3"
PAGE_ENTRIES: Final = 1000
"""Most entries of a listing, and names of a deletion, in one request."""
DELETES_AT_ONCE: Final = 16
STREAM_BYTES: Final = 4 << 20
PUT_BYTES_MAX: Final = 64 << 20
"""Longest unconditional upload in one request, in bytes. Longer ones use parts of this length."""


class S3FileSystem(AsyncFileSystem):
    """File system of the objects of S3, with paths `bucket/key`.

    Safe to use from many tasks, and from several event loops one after the other. A child that was
    forked after the first request is refused: start processes by `spawn`.

    Errors are `OSError`s: `FileNotFoundError`, `FileExistsError`, `PermissionError`,
    `TimeoutError`, and others if the outcome is unknown. No error contains a credential. Cancelling
    a call leaves the file system usable; a write may then have landed, or land later.
    """

    protocol = (PROTOCOL, "s3")
    async_impl = True
    cachable = False
    mirror_sync_methods = True

    def __init__(
        self,
        *,
        credentials: object = None,
        asynchronous: bool = False,
        loop: object = None,
        batch_size: int | None = None,
        skip_instance_cache: bool = True,
        use_listings_cache: bool = False,
        **options: Any,
    ) -> None:
        """Create a file system without a request. `options` are the fields of `S3Options`.

        `credentials` is a synchronous credential provider of obstore. None: the key pair of the
        environment, else boto3's chain.

        Raises:
            TypeError: there is no such option.
            ValueError: an option or the environment's endpoint is wrong, or `use_listings_cache` is
                true.
        """
        if use_listings_cache:
            raise ValueError("listings of S3 are never kept: other writers change them")
        super().__init__(
            asynchronous=asynchronous,
            loop=loop,
            batch_size=batch_size,
            skip_instance_cache=skip_instance_cache,
            use_listings_cache=False,
            **options,
        )
        self.options = S3Options(**options)
        region_of(self.options, os.environ)  # a wrong one is refused here
        check_proxy(self.options, endpoint_of(self.options, os.environ), os.environ)
        given = cast("Credentials | None", credentials)
        self._credentials = given or credentials_of(os.environ)
        self._clients: dict[str, Clients] = {}
        self._connecting = Lock()
        self._deletes_singly: set[str] = set()
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"<S3FileSystem: {self.options.endpoint or 'AWS'}>"

    async def close(self) -> None:
        """Close the connections. Requests under way complete. Idempotent."""
        for clients in self._clients.values():
            clients.close()
        self._clients.clear()

    # Writing

    async def _pipe_file(
        self,
        path: str,
        value: Part | Sequence[Part],
        mode: str = "overwrite",
        *,
        if_match: str = "",
        **odd: object,
    ) -> str:
        """Store the bytes or the joined buffers. Return the object's e-tag. One request.

        `mode="create"` stores only if the object is absent; `if_match` only if it has that e-tag.
        Both are tried once, in one request of any length.

        Raises:
            FileExistsError: the condition does not hold; nothing was stored.
            ValueError: there is no such mode, or the object is too long.
        """
        if odd:
            raise TypeError(f"unknown options of a write: {', '.join(sorted(odd))}")
        if mode not in {"overwrite", "create"} or (if_match and mode == "create"):
            raise ValueError(f"mode is overwrite or create, not {mode!r}, and create has no e-tag")
        sent, size_bytes = payload(value)
        if size_bytes > self.options.object_bytes_max:
            raise ValueError(f"{size_bytes:,} bytes are too long for one request")
        is_conditional = mode == "create" or bool(if_match)
        async with self._call(path, "PutObject") as (clients, key):
            client = await clients.of("single" if is_conditional else "uploading")
            stored = await client.put_async(
                key,
                sent,
                mode={"e_tag": if_match} if if_match else cast("Any", mode),
                use_multipart=not is_conditional and size_bytes > PUT_BYTES_MAX,
                chunk_size=PUT_BYTES_MAX,
            )
        return stored["e_tag"] or ""

    async def _put_file(
        self, lpath: str, rpath: str, mode: str = "overwrite", **odd: object
    ) -> None:
        del odd
        if await asyncio.to_thread(Path(lpath).is_dir):
            return
        await self._pipe_file(rpath, await asyncio.to_thread(Path(lpath).read_bytes), mode)

    async def _cp_file(self, path1: str, path2: str, **odd: object) -> None:
        del odd
        (bucket, _), (other, key) = parse(path1), parse(path2)
        if bucket != other:
            await self._pipe_file(path2, await self._cat_file(path1))
            return
        async with self._call(path1, "CopyObject") as (clients, source):
            await clients.repeating.copy_async(source, key)

    # Reading

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **odd: object
    ) -> bytes:
        del odd
        return bytes(await self._cat_buffer(path, start, end))

    async def _cat_buffer(
        self, path: str, start: int | None = None, end: int | None = None
    ) -> memoryview:
        """Read the bytes `[start, end)` within the object, without a copy. One request.

        A negative number counts from the object's end and costs one more request.
        """
        if min(start or 0, end or 0) < 0:
            start, end, _ = slice(start, end).indices((await self._object(path))["size"])
        begin = start or 0
        if end is not None and end <= begin:
            await self._object(path)  # raises if it is absent
            return memoryview(b"")
        try:
            async with self._call(path, "GetObject") as (clients, key):
                if end is not None:
                    found = await clients.repeating.get_range_async(key, start=begin, end=end)
                else:
                    part = {"range": {"offset": begin}} if begin else {}
                    result = await clients.repeating.get_async(key, options=cast("Any", part))
                    found = await result.bytes_async()
        except OSError as error:
            if error.errno == errno.ERANGE:
                return memoryview(b"")  # the object ends before the range begins
            raise
        return memoryview(cast("bytes", found)).cast("B")

    async def _get_file(self, rpath: str, lpath: str, **odd: object) -> None:
        del odd
        if await self._isdir(rpath):
            await asyncio.to_thread(Path(lpath).mkdir, parents=True, exist_ok=True)
            return
        await asyncio.to_thread(Path(lpath).parent.mkdir, parents=True, exist_ok=True)
        size_bytes = (await self._object(rpath))["size"]
        with await asyncio.to_thread(Path(lpath).open, "wb") as file:
            for at in range(0, size_bytes, STREAM_BYTES):
                part = await self._cat_buffer(rpath, at, min(at + STREAM_BYTES, size_bytes))
                await asyncio.to_thread(file.write, part)

    async def _info(self, path: str, **odd: object) -> Info:
        del odd
        path = str(self._strip_protocol(path))
        if parse(path)[1]:
            try:
                return await self._object(path)
            except FileNotFoundError:
                if not await self._has_below(path):
                    raise
        return directory(path)

    async def _object(self, path: str) -> Info:
        """Return the info of an object. One request, and a second one if it is absent.

        The second request distinguishes a missing bucket from a missing object, which HEAD cannot.

        Raises:
            FileNotFoundError: there is no such object; NoPlace if there is no such bucket.
        """
        try:
            async with self._call(path, "HeadObject") as (clients, key):
                found = await clients.repeating.head_async(key)
        except FileNotFoundError:
            async with self._call(path, "GetObject") as (clients, key):
                await clients.repeating.get_range_async(key, start=0, end=1)
            raise
        return info_of(str(self._strip_protocol(path)), found)

    # Listing

    async def _ls(
        self,
        path: str,
        detail: bool = True,  # noqa: FBT001, FBT002 - fsspec calls it so
        **odd: object,
    ) -> list[Any]:
        del odd
        path = str(self._strip_protocol(path)).rstrip("/")
        bucket, key = parse(path)
        entries: list[Info] = []
        async for page in self._raw_pages(path, f"{key}/" if key else "", delimiter="/"):
            entries += [
                directory(f"{bucket}/{one[:-1]}") for one in page.prefixes if is_name(one[:-1])
            ]
            entries += [info_of_listed(bucket, one) for one in page.objects if is_name(one.key)]
        if not entries and key:
            entries = [await self._object(path)]
        return entries if detail else [entry["name"] for entry in entries]

    async def _directories(self, path: str) -> list[str]:
        """List the directories with objects directly below `path`; [] if there are none."""
        bucket, key = parse(str(self._strip_protocol(path)).rstrip("/"))
        return [
            f"{bucket}/{one[:-1]}"
            async for page in self._raw_pages(path, f"{key}/" if key else "", delimiter="/")
            for one in page.prefixes
            if is_name(one[:-1])
        ]

    async def _find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,  # noqa: FBT001, FBT002 - fsspec calls it so
        **options: Any,
    ) -> Any:
        if maxdepth is not None or withdirs:
            return await super()._find(path, maxdepth=maxdepth, withdirs=withdirs, **options)
        path = str(self._strip_protocol(path)).rstrip("/")
        bucket, key = parse(path)
        found = [one async for page in self._pages(f"{path}/", "") for one in page]
        entries = [info_of_listed(bucket, one) for one in found]
        if not entries and key:
            try:
                entries = [await self._object(path)]
            except FileNotFoundError:
                entries = []
        by_name = {entry["name"]: entry for entry in sorted(entries, key=lambda one: one["name"])}
        return by_name if options.get("detail") else list(by_name)

    async def _list_after(self, prefix: str, after: str) -> AsyncIterator[PathPage]:
        """Yield pages of objects whose path begins with `prefix` and sorts after `after`.

        Costs one request for each page. The order is that of the service: by name, except for
        services that sort by directory.
        """
        bucket = parse(prefix)[0]
        async for page in self._pages(prefix, after):
            yield [(f"{bucket}/{one.key}", one.size, one.modified) for one in page]

    async def _pages(self, prefix: str, after: str) -> AsyncIterator[list[Listed]]:
        wanted = parse(prefix)[1]
        last = parse(after)[1] if after else ""
        above = directory_of(wanted)
        start = start_after(wanted, last)
        async for page in self._raw_pages(prefix, f"{above}/" if above else "", start=start):
            yield [
                one
                for one in page.objects
                if one.key.startswith(wanted) and one.key > last and not one.key.endswith("/")
            ]

    async def _raw_pages(
        self, path: str, prefix: str, *, start: str = "", delimiter: str = ""
    ) -> AsyncIterator[Page]:
        """Yield the replies to one listing, with unchanged keys, in the order of the service.

        Raises:
            OSError: EOPNOTSUPP if a page has no token, or an earlier page's token, for the next.
        """
        parameters = {"list-type": "2", "max-keys": str(PAGE_ENTRIES), "prefix": prefix}
        parameters |= {"start-after": start} if start else {}
        parameters |= {"delimiter": delimiter} if delimiter else {}
        tokens: set[str] = set()
        while True:
            async with self._call(path, "ListObjectsV2") as (clients, _):
                try:
                    page = await clients.lister.page(parameters)
                except ListingFailed as error:
                    raise failed(error.failure, path, clients.place, "ListObjectsV2") from error
                if page.next_token in tokens:
                    again = Failure(trouble="odd", said="a listing goes round in a circle")
                    raise failed(again, path, clients.place, "ListObjectsV2")
            yield page
            if not page.next_token:
                return
            tokens.add(page.next_token)
            parameters = {**parameters, "continuation-token": page.next_token}

    async def _has_below(self, path: str) -> bool:
        async for page in self._pages(f"{path.rstrip('/')}/", ""):
            if page:
                return True
        return False

    # Deleting

    async def _rm_file(self, path: str, **odd: object) -> None:
        """Delete one object by a single DELETE."""
        del odd
        async with self._call(path, "DeleteObject") as (clients, key):
            client = await clients.of("deleting")
            await client.delete_async(key)

    async def _rm(
        self,
        path: str | list[str],
        recursive: bool = False,  # noqa: FBT001, FBT002 - fsspec calls it so
        batch_size: int | None = None,
        **odd: object,
    ) -> None:
        del batch_size, odd
        paths = await self._expand_path(path, recursive=recursive)
        objects = [one for one in paths if not await self._isdir(one)] if recursive else paths
        for _, error in await self._rm_objects(objects):
            raise error

    async def _rm_objects(self, paths: Sequence[str]) -> list[tuple[str, OSError]]:
        """Delete objects. Return those that failed, with their errors. Absent objects do not fail.

        Costs one request for 1,000 objects. If such a request fails, which reports no single names,
        costs one more for each name. If a service supports only single deletions, later calls use
        them at once.
        """
        by_bucket: dict[str, list[str]] = {}
        for path in paths:
            by_bucket.setdefault(parse(path)[0], []).append(path)
        failed: list[tuple[str, OSError]] = []
        for of_bucket in by_bucket.values():
            for at in range(0, len(of_bucket), PAGE_ENTRIES):
                part = of_bucket[at : at + PAGE_ENTRIES]
                failed += await self._rm_page(part)
        return failed

    async def _rm_page(self, paths: Sequence[str]) -> list[tuple[str, OSError]]:
        bucket = parse(paths[0])[0]
        if len(paths) == 1 or bucket in self._deletes_singly:
            return await self._rm_singly(paths)
        for repeats in (False, True):  # a service without such requests is not asked again
            try:
                async with self._call(paths[0], "DeleteObject") as (clients, _):
                    client = clients.repeating if repeats else await clients.of("single")
                    await client.delete_async([parse(path)[1] for path in paths])
            except OSError as error:
                if error.errno not in {errno.EOPNOTSUPP, errno.EACCES}:
                    continue
                failed = await self._rm_singly(paths)
                if not failed and error.errno == errno.EOPNOTSUPP:
                    self._deletes_singly.add(bucket)
                return failed
            return []
        return await self._rm_singly(paths)

    async def _rm_singly(self, paths: Sequence[str]) -> list[tuple[str, OSError]]:
        slots = asyncio.Semaphore(DELETES_AT_ONCE)

        async def remove(path: str) -> tuple[str, OSError | None]:
            try:
                async with slots:
                    await self._rm_file(path)
            except OSError as error:
                is_gone = isinstance(error, FileNotFoundError) and not isinstance(error, NoPlace)
                return path, None if is_gone else error
            return path, None

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(remove(path)) for path in paths]
        done = [task.result() for task in tasks]
        return [(path, error) for path, error in done if error is not None]

    # One call

    @asynccontextmanager
    async def _call(self, path: str, operation: Operation) -> AsyncGenerator[tuple[Clients, str]]:
        """Yield the clients of a path's bucket and its key, within a slot and `os_errors`."""
        check_process()
        bucket, key = parse(str(self._strip_protocol(path)))
        clients = self._clients.get(bucket)
        if clients is None:
            clients = await self._connect(bucket)
        slots = self._slots.setdefault(
            asyncio.get_running_loop(), asyncio.Semaphore(self.options.connections_max)
        )
        async with os_errors(path, clients.place, operation, self.options.total_s_max), slots:
            try:
                yield clients, key
            except PermissionError:
                self._forget(bucket, clients)
                raise

    async def _connect(self, bucket: str) -> Clients:
        """Create the clients of a bucket in a thread, because that may read files."""
        return await asyncio.to_thread(self._connected, bucket)

    def _connected(self, bucket: str) -> Clients:
        """Return the clients of a bucket. Concurrent first calls wait for one of them.

        Making clients costs 7 ms of CPU, which each of a thousand concurrent calls would spend.
        """
        with self._connecting:
            clients = self._clients.get(bucket)
            if clients is None:
                clients = Clients(bucket, self.options, credentials=self._credentials)
                self._clients[bucket] = clients
            return clients

    def _forget(self, bucket: str, refused: Clients) -> None:
        """Drop the clients after a refusal, so that the next call reads renewed credentials."""
        if isinstance(self._credentials, ChainCredentials) and (
            self._clients.get(bucket) is refused
        ):
            del self._clients[bucket]

    def _open(self, path: str, mode: str = "rb", **options: Any) -> WholeFile:
        return WholeFile(self, path, mode, **options)
