"""Store on any file system of fsspec with create-if-absent, and its opening by URL."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any, Final, Literal, TypeVar

from provider.clock import Clock, SystemClock, run_concurrently, within
from provider.errors import Closed, Denied, OutOfRange, StoreError, Unavailable
from provider.names import TEMPORARY_PREFIX, check_name, check_prefix
from provider.object.files import (
    DELETES_MAX,
    ObjectFiles,
    Page,
    as_verdict,
    files_and_root,
    fsspec_errors,
)
from provider.object_store import Buffer, Moment, ObjectEntry
from provider.options import ObjectOptions
from provider.ranges import ByteRange

RequestKind = Literal["PUT", "GET", "HEAD", "LIST", "DELETE"]
REQUEST_KINDS: Final[tuple[RequestKind, ...]] = ("PUT", "GET", "HEAD", "LIST", "DELETE")


class RequestMeter:
    """Counters of requests. They never decrease. A request counts when it is sent.

    Retries inside a client library are not counted: a failing service bills more.
    """

    def __init__(self) -> None:
        self.requests: Counter[RequestKind] = Counter()

    def __repr__(self) -> str:
        return f"<RequestMeter {dict(self.requests)}>"

    @property
    def writes(self) -> int:
        """Number of requests that write or delete."""
        return self.requests["PUT"] + self.requests["DELETE"]

    @property
    def total(self) -> int:
        """Number of all requests."""
        return self.requests.total()

    def made(self, kind: RequestKind) -> None:
        """Count one request that is about to be sent."""
        self.requests[kind] += 1


LOGGER = logging.getLogger("tieredstore.provider")
STRANGE_MAX = 100
"""Most foreign names that are logged."""
ResultT = TypeVar("ResultT")
WHOLE_BYTES = 64 << 20
"""Bytes assumed for the timeout of a read of a whole object, whose length is unknown."""


class FsspecStore:
    """`ObjectStore` below one path of a file system (decision 0029).

    Every request has a slot and a deadline. A request that times out frees its slot and raises
    `Unavailable`, so its outcome is unknown. Nothing is retried here; see `RetryingStore`. Memory:
    none between calls. A file system that takes only one buffer gets a joined copy of the buffers
    to store.
    """

    def __init__(
        self,
        files: ObjectFiles,
        root: str,
        *,
        options: ObjectOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Open `root`, a path of the file system such as `bucket/prefix`, without a final slash."""
        self._files = files
        self._root = f"{root}/"
        self._options = options or ObjectOptions()
        self._clock = clock or SystemClock()
        self._slots = asyncio.Semaphore(self._options.requests_max)
        self._upload_slots = asyncio.Semaphore(self._options.uploads_max)
        self._is_closed = False
        self._strange: set[str] = set()
        self.meter = RequestMeter()
        """Counters of requests so far."""

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else repr(self._files)
        return f"<FsspecStore {self._root}: {state}>"

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store a new object; `ObjectStore.create`. One request.

        Raises also:
            Denied: the container, such as the bucket, does not exist, or access is refused.
        """
        self._check(name)
        size_bytes = sum(map(len, buffers))
        with fsspec_errors(name), self._in_its_place(name):
            async with self._slot(self._upload_slots):
                create = self._files.create(self._path(name), buffers)
                await self._timed("PUT", create, size_bytes)

    async def replace(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Replace an object; `ReplacingStore.replace`. One request, or one for each 64 MiB."""
        self._check(name)
        size_bytes = sum(map(len, buffers))
        with fsspec_errors(name), self._in_its_place(name):
            async with self._slot(self._upload_slots):
                replace = self._files.replace(self._path(name), buffers)
                await self._timed("PUT", replace, size_bytes)

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`. One request, and a second if it is short."""
        self._check(name)
        path, position = self._path(name), wanted.start if wanted else 0
        with fsspec_errors(name, position):
            async with self._slot(self._slots):
                if wanted is None:
                    return await self._timed("GET", self._files.read(path, None, None), WHOLE_BYTES)
                found = await self._timed(
                    "GET", self._files.read(path, wanted.start, wanted.end), wanted.length
                )
                if len(found) < wanted.length:
                    size_bytes = await self._timed("HEAD", self._files.size(path))
                    raise _short(len(found), size_bytes, name, wanted)
        if len(found) > wanted.length:
            raise Denied("the storage answers with more than was asked for", name, position)
        return found

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`. One request for each, concurrently."""
        self._check(*(name for name, _ in wanted))
        return await run_concurrently([self.read(name, part) for name, part in wanted])

    async def size(self, name: str) -> int:
        """Return the object's length in bytes; `ObjectStore.size`. One request."""
        self._check(name)
        with fsspec_errors(name):
            async with self._slot(self._slots):
                return await self._timed("HEAD", self._files.size(self._path(name)))

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """List objects by name; `ObjectStore.list`. One request per 1,000 if storage has pages.

        Memory: all entries. Each page has the deadline of one request.

        Raises also:
            Denied: there is no such bucket.
        """
        self._check()
        check_prefix(prefix)
        after_path = self._path(after) if after else ""
        found: dict[str, tuple[int, Moment | None]] = {}
        with fsspec_errors(prefix), self._in_its_place(prefix):
            async with self._slot(self._slots):
                pages = self._files.pages(self._path(prefix), after_path)
                self.meter.made("LIST")
                while (page := await self._timed(None, _next(pages))) is not None:
                    if found:
                        self.meter.made("LIST")  # a page after the first one
                    found.update(
                        (path.removeprefix(self._root), (size, modified))
                        for path, size, modified in page
                    )
        return [
            ObjectEntry(name, *found[name])
            for name in sorted(found)
            if name.startswith(prefix) and name > after and self._is_object(name)
        ]

    def _is_object(self, name: str) -> bool:
        """Whether a listed name is a valid object name. Other names are logged once."""
        if _is_temporary(name):
            return False
        try:
            check_name(name)
        except ValueError:
            if name not in self._strange and len(self._strange) < STRANGE_MAX:
                self._strange.add(name)
                where = self._root.rstrip("/")
                LOGGER.warning(
                    "%s holds %r, which is no name of an object: passed over", where, name
                )
            return False
        return True

    async def directories(self, name: str = "") -> Sequence[str]:
        """List the directories with objects directly below `name`, sorted; "" is the root.

        One request per 1,000.

        Raises:
            Denied, Unavailable: as `list`.
        """
        self._check(*([name] if name else []))
        path = self._path(name).rstrip("/")
        with fsspec_errors(name), self._in_its_place(name):
            async with self._slot(self._slots):
                found = await self._timed("LIST", self._files.directories(path))
        return sorted(one.removeprefix(f"{path}/") for one in found)

    async def holds(self, prefix: str) -> bool:
        """Whether the name of any object begins with `prefix`. One request.

        `directories` may include deleted names: some services keep empty directories.

        Raises:
            Denied, Unavailable: as `list`.
        """
        self._check()
        check_prefix(prefix)
        path = self._path(prefix)
        with fsspec_errors(prefix), self._in_its_place(prefix):
            async with self._slot(self._slots), aclosing(self._files.pages(path, "")) as pages:
                self.meter.made("LIST")
                while (page := await self._timed(None, _next(pages))) is not None:
                    if any(found.startswith(path) for found, *_ in page):
                        return True
        return False

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; `ObjectStore.delete`. One request per 1,000 if storage has such.

        Tries all names, also after failures.

        Raises also:
            Denied: all failures were refusals, so a retry is useless.
        """
        self._check(*names)
        failed: Sequence[tuple[str, Exception]] = ()
        paths_left = [self._path(name) for name in dict.fromkeys(names)]
        while paths_left:
            paths, paths_left = paths_left[:DELETES_MAX], paths_left[DELETES_MAX:]
            with fsspec_errors(paths[0].removeprefix(self._root)):
                async with self._slot(self._slots):
                    failed = [
                        *failed,
                        *await self._timed("DELETE", self._files.remove(paths), len(paths)),
                    ]
        if failed:
            raise self._undeleted(failed, len(names))

    async def close(self) -> None:
        """Release connections. Idempotent. Every later call raises `Closed`."""
        if not self._is_closed:
            self._is_closed = True
            with fsspec_errors(""):
                await self._files.close()

    def _undeleted(self, failed: Sequence[tuple[str, Exception]], number: int) -> StoreError:
        failure: StoreError | None = None
        kind: type[StoreError]
        for path, error in failed:
            verdict = as_verdict(error, path.removeprefix(self._root))
            if verdict is None:
                raise error
            if failure is None or not isinstance(verdict, Denied):
                failure = verdict
                failure.__cause__ = error
        assert failure is not None, "nothing failed"
        kind = type(failure) if isinstance(failure, Denied) else Unavailable
        reason = f"{len(failed)} of {number} objects are not deleted: {failure.reason}"
        undeleted = kind(reason, failure.path)
        undeleted.__cause__ = failure.__cause__
        return undeleted

    def _check(self, *names: str) -> None:
        if self._is_closed:
            raise Closed("the store was closed", names[0] if names else "")
        for name in names:
            check_name(name)

    def _path(self, name: str) -> str:
        return f"{self._root}{name}"

    @contextmanager
    def _in_its_place(self, name: str) -> Generator[None]:
        """Translate "not found" in a call that does not read an object: the bucket is missing.

        Raises:
            Denied: the bucket or directory does not exist.
        """
        try:
            yield
        except (FileNotFoundError, NotADirectoryError) as error:
            where, why = self._root.rstrip("/"), error.strerror or "no such directory"
            raise Denied(f"{where} does not exist: {why}", name) from error

    @asynccontextmanager
    async def _slot(self, slots: asyncio.Semaphore) -> AsyncGenerator[None]:
        """Hold a slot. The wait has no deadline, because every request with a slot has one."""
        async with slots:
            if self._is_closed:
                raise Closed("the store was closed", "")
            yield

    async def _timed(
        self, kind: RequestKind | None, request: Coroutine[Any, Any, ResultT], size_bytes: int = 0
    ) -> ResultT:
        if kind is not None:
            self.meter.made(kind)
        return await within(self._clock, self._options.deadline_s(size_bytes), request)


async def _next(pages: AsyncIterator[Page]) -> Page | None:
    return await anext(pages, None)


def _is_temporary(name: str) -> bool:
    return name.startswith(TEMPORARY_PREFIX) or f"/{TEMPORARY_PREFIX}" in name


def _short(found: int, size_bytes: int, name: str, wanted: ByteRange) -> StoreError:
    """Return the verdict on a short read of an object of `size_bytes`. Pure."""
    if size_bytes < wanted.end:
        return OutOfRange(f"the object ends at {size_bytes}", name, wanted.start)
    reason = f"the storage answered with {found} bytes of {wanted.length}"
    return Unavailable(reason, name, wanted.start)


def open_object_store(
    url: str,
    *,
    options: ObjectOptions | None = None,
    clock: Clock | None = None,
    storage: Mapping[str, Any] | None = None,
) -> FsspecStore:
    """Open a store below a URL, such as `s3://bucket/prefix`. No request.

    `storage` are the options of its file system. `probe` tests the promises of the storage.

    Raises:
        Denied: no file system is installed for such URLs, or it is known to be unsafe.
    """
    files, root = files_and_root(url, storage or {})
    return FsspecStore(files, root, options=options, clock=clock)
