"""Adapters from file systems of fsspec to the few calls that a store needs, and their errors.

File systems of this package offer more than fsspec requires: pages of a listing, the failed
deletions, and buffers that need not be joined. For all others the stock calls are used. A file
system that cannot keep the promises of a tier is refused.
"""
# ruff: noqa: D102, SLF001 - `ObjectFiles` documents the calls
# fsspec has no types, and its overridable calls begin with an underscore.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportUntypedBaseClass=false

import errno
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol, TypeVar, cast
from uuid import uuid4

import fsspec
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from provider.errors import (
    AlreadyExists,
    Denied,
    NotFound,
    StoreError,
    Unauthorized,
    Unavailable,
)
from provider.names import TEMPORARY_PREFIX, is_directory
from provider.object_store import Buffer, Moment
from provider.posix.files import sync_directory

TEXT_CHARACTERS_MAX: Final = 500
"""Longest text of a foreign error, in characters. Servers may send whole pages."""

_SECRETS: Final = (
    (re.compile(r"\?\S+"), "?..."),  # a signed URL has its signature in the query
    (re.compile(r"(?<=//)[^/\s@]+@"), "...@"),
    (
        re.compile(
            r"(?i)([\w-]*(?:secret|token|password|signature|credential|authorization|access_?key)"
            r"[\w-]*['\"]?\s*[=:]\s*['\"]?)(?:(?:aws4-hmac-sha256|bearer|basic)\s+)?[^\s,;'\"]+"
        ),
        r"\1...",
    ),
)


class NoPlace(FileNotFoundError):
    """The container of the objects, such as the bucket, does not exist."""


def error_text(error: BaseException) -> str:
    """Return the text of an error in one short line, without possible secrets. Pure."""
    text = getattr(error, "strerror", None) or str(error)
    line = " ".join(str(text).split())
    for pattern, shown in _SECRETS:
        line = pattern.sub(shown, line)
    if len(line) > TEXT_CHARACTERS_MAX:
        line = f"{line[:TEXT_CHARACTERS_MAX]}..."
    if isinstance(error, OSError) and error.strerror:
        return line
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


_VERDICTS: Final[tuple[tuple[tuple[type[Exception], ...], type[StoreError], str], ...]] = (
    ((NoPlace,), Denied, "{text}"),
    ((FileExistsError,), AlreadyExists, "the name is taken"),
    (
        (FileNotFoundError, NotADirectoryError, IsADirectoryError),
        NotFound,
        "there is no such object",
    ),
    ((PermissionError,), Unauthorized, "the storage refuses us: {text}"),
    ((TimeoutError,), Unavailable, "the storage does not answer in time: {text}"),
    ((OSError,), Unavailable, "the storage failed: {text}"),
)
"""Verdicts by class of error. The first row that matches decides."""


def as_verdict(error: Exception, path: str, position: int = 0) -> StoreError | None:
    """Return the verdict on an error at `position` of `path`; None if unknown. Pure.

    Classes of client libraries report failures of a server or a connection. Errors of Python
    itself, such as `TypeError`, are bugs and have no verdict.
    """
    if isinstance(error, OSError) and error.errno == errno.EOPNOTSUPP:
        return Denied(f"the storage refuses us: {error_text(error)}", path, position)
    for kinds, verdict, reason in _VERDICTS:
        if isinstance(error, kinds):
            return verdict(reason.format(text=error_text(error)), path, position)
    if type(error).__module__ != "builtins":
        return Unavailable(f"the storage failed: {error_text(error)}", path, position)
    return None


@contextmanager
def fsspec_errors(path: str, position: int = 0) -> Generator[None]:
    """Translate errors of a file system inside the block, as `as_verdict`.

    A `StoreError`, or an error without a verdict, propagates unchanged.
    """
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        verdict = as_verdict(error, path, position)
        if verdict is None:
            raise
        raise verdict from error


ResultT = TypeVar("ResultT")
Page = list[tuple[str, int, Moment | None]]
"""Paths, lengths in bytes, and write times by the storage's clock."""

DELETES_MAX: Final = 1000
"""Most objects that one request deletes, if the storage has such a request."""


class ObjectFiles(Protocol):
    """Calls on whole paths. They raise `OSError` and errors of client libraries."""

    async def create(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Store the joined buffers if the path is free; else raise `FileExistsError`."""
        ...

    async def replace(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Store the joined buffers, replacing any object of that path."""
        ...

    async def read(self, path: str, start: int | None, end: int | None) -> Buffer:
        """Read the bytes `[start, end)` within the object; None: the object's own bounds."""
        ...

    async def size(self, path: str) -> int:
        """Return the length in bytes."""
        ...

    def pages(self, prefix: str, after: str) -> AsyncGenerator[Page]:
        """List objects whose path begins with `prefix` and sorts after `after`, or more objects."""
        ...

    async def directories(self, path: str) -> list[str]:
        """List the directories with objects directly below `path`."""
        ...

    async def remove(self, paths: Sequence[str]) -> list[tuple[str, Exception]]:
        """Delete objects. Return those that failed. An absent object counts as deleted."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


class RicherFileSystem(Protocol):
    """Calls of this package's file systems beyond fsspec's, or richer than those."""

    async def _pipe_file(self, path: str, value: Sequence[Buffer], *, mode: str) -> object: ...
    async def _cat_buffer(self, path: str, start: int | None, end: int | None) -> object: ...
    async def _info(self, path: str) -> dict[str, Any]: ...
    async def _directories(self, path: str) -> list[str]: ...
    def _list_after(self, prefix: str, after: str) -> AsyncIterator[Page]: ...
    async def _rm_objects(self, paths: list[str]) -> list[tuple[str, OSError]]: ...
    async def close(self) -> None: ...


def files_of(file_system: AbstractFileSystem) -> ObjectFiles:
    """Return the adapter of a file system.

    Raises:
        Denied: the file system has no create-if-absent; the text has the reason.
    """
    if hasattr(file_system, "_list_after") and hasattr(file_system, "_rm_objects"):
        return OwnFileSystemFiles(cast("RicherFileSystem", file_system))
    if isinstance(file_system, MemoryFileSystem):
        return MemoryFiles(file_system)
    refuse_unsafe(file_system)
    if isinstance(file_system, AsyncFileSystem):
        return StockFiles(file_system)
    return StockFiles(AsyncFileSystemWrapper(file_system, asynchronous=True))


def refuse_unsafe(file_system: AbstractFileSystem) -> None:
    """Refuse a file system whose code has no atomic create.

    The stock `pipe_file` checks for an object and then writes. Two racing owners would both
    succeed, which a sequential probe cannot detect.

    Raises:
        Denied: the text has the missing calls.
    """
    kind: Any = type(file_system)
    name = f"the file system {kind.__module__}.{kind.__name__}"
    lacking: list[str] = []
    if isinstance(file_system, AsyncFileSystem):
        unsafe = kind._pipe_file is AsyncFileSystem._pipe_file
        lacking = [
            call
            for call in ("_cat_file", "_info", "_ls")
            if getattr(kind, call) is getattr(AsyncFileSystem, call)
        ]
    else:
        unsafe = kind.pipe_file is AbstractFileSystem.pipe_file
    if unsafe:
        raise Denied(
            f"{name} has no create-if-absent of its own (fsspec's checks first and then writes), "
            f"so two owners could overwrite each other: use another one",
            "",
        )
    if lacking:
        raise Denied(f"{name} lacks {', '.join(lacking)}: use another one", "")


class OwnFileSystemFiles:
    """Adapter of a file system with the richer calls (`provider/s3/`)."""

    def __init__(self, file_system: RicherFileSystem) -> None:
        self._fs = file_system

    def __repr__(self) -> str:
        return f"<OwnFileSystemFiles: {type(self._fs).__name__}>"

    async def create(self, path: str, buffers: Sequence[Buffer]) -> None:
        await self._fs._pipe_file(path, buffers, mode="create")

    async def replace(self, path: str, buffers: Sequence[Buffer]) -> None:
        await self._fs._pipe_file(path, buffers, mode="overwrite")

    async def read(self, path: str, start: int | None, end: int | None) -> Buffer:
        return _as_buffer(await self._fs._cat_buffer(path, start, end))

    async def size(self, path: str) -> int:
        return _length(await self._fs._info(path), path)

    async def pages(self, prefix: str, after: str) -> AsyncGenerator[Page]:
        async for page in self._fs._list_after(prefix, after):
            yield page

    async def directories(self, path: str) -> list[str]:
        return await self._fs._directories(path)

    async def remove(self, paths: Sequence[str]) -> list[tuple[str, Exception]]:
        failed = await self._fs._rm_objects(list(paths))
        return [(path, error) for path, error in failed if not _is_absent(error)]

    async def close(self) -> None:
        await self._fs.close()


class StockFiles:
    """Adapter of any other asynchronous file system, through fsspec's own calls."""

    def __init__(self, file_system: AsyncFileSystem) -> None:
        self._fs: Any = file_system
        inner = getattr(file_system, "sync_fs", file_system)
        walks = type(inner).find is AbstractFileSystem.find
        if isinstance(inner, AsyncFileSystem):
            walks = type(inner)._find is AsyncFileSystem._find
        self._find_options = {"on_error": "raise"} if walks else {}
        # by default a walk skips directories that it may not read

    def __repr__(self) -> str:
        return f"<StockFiles: {self._fs!r}>"

    async def create(self, path: str, buffers: Sequence[Buffer]) -> None:
        try:
            await self._fs._pipe_file(path, b"".join(buffers), mode="create")
        except OSError as error:
            # s3fs raises EINVAL for a refused condition; the object may be the caller's own
            if error.errno == errno.EINVAL and await self._fs._exists(path):
                raise FileExistsError(errno.EEXIST, "the name is taken", path) from error
            raise

    async def replace(self, path: str, buffers: Sequence[Buffer]) -> None:
        await self._fs._pipe_file(path, b"".join(buffers), mode="overwrite")

    async def read(self, path: str, start: int | None, end: int | None) -> Buffer:
        try:
            return _as_buffer(await self._fs._cat_file(path, start=start, end=end))
        except (OSError, ValueError) as error:
            # s3fs raises EINVAL or ValueError for a range that begins beyond the end
            is_no_outage = getattr(error, "errno", None) in {None, errno.EINVAL}
            if start is None or not is_no_outage or isinstance(error, TimeoutError):
                raise
            if await self.size(path) > start:
                raise
            return b""

    async def size(self, path: str) -> int:
        return _length(await self._fs._info(path), path)

    async def pages(self, prefix: str, after: str) -> AsyncGenerator[Page]:
        del after  # stock calls have no such argument: the caller filters
        above = prefix.rpartition("/")[0]
        self._fs.invalidate_cache()
        try:
            found = await self._fs._find(above, detail=True, **self._find_options)
        except FileNotFoundError:
            if await self._fs._exists(above):
                raise OSError(errno.EAGAIN, "a directory went while it was listed") from None
            return
        yield [(path, int(info["size"]), _modified(info)) for path, info in found.items() if info]

    async def directories(self, path: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            return _directories(await self._fs._ls(path, detail=True))
        except FileNotFoundError:
            return []

    async def remove(self, paths: Sequence[str]) -> list[tuple[str, Exception]]:
        failed: list[tuple[str, Exception]] = []
        for path in paths:
            try:
                await self._fs._rm_file(path)
            except Exception as error:  # noqa: BLE001 - translated by the caller
                if not _is_absent(error):
                    failed.append((path, error))
        return failed

    async def close(self) -> None:
        """Do nothing: stock file systems close their sessions themselves."""


_MEMORY = Lock()
"""Lock of the objects of `memory://`, which all threads of a process share."""


class MemoryFiles:
    """Adapter of fsspec's `memory://`. Calls run on the event loop under a lock.

    Its `pipe_file` checks and writes in two steps, and other threads may have loops of their own.
    """

    def __init__(self, file_system: MemoryFileSystem) -> None:
        self._fs: Any = file_system

    def __repr__(self) -> str:
        return f"<MemoryFiles: {self._fs!r}>"

    async def create(self, path: str, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)

        def create() -> None:
            if path in self._fs.store:
                raise FileExistsError(errno.EEXIST, "the name is taken", path)
            self._fs.pipe_file(path, data)  # its own mode="create" takes O(objects)

        self._locked(create)

    async def replace(self, path: str, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        self._locked(lambda: self._fs.pipe_file(path, data))

    async def read(self, path: str, start: int | None, end: int | None) -> Buffer:
        return self._locked(lambda: self._fs.cat_file(path, start, end))

    async def size(self, path: str) -> int:
        return _length(self._locked(lambda: self._fs.info(path)), path)

    async def pages(self, prefix: str, after: str) -> AsyncGenerator[Page]:
        above = prefix.rpartition("/")[0]
        found = self._locked(lambda: self._fs.find(above, detail=True))
        yield [
            (path, info["size"], _modified(info))
            for path, info in found.items()
            if path.startswith(prefix) and path > after
        ]

    async def directories(self, path: str) -> list[str]:
        try:
            return _directories(self._locked(lambda: self._fs.ls(path, detail=True)))
        except FileNotFoundError:
            return []

    async def remove(self, paths: Sequence[str]) -> list[tuple[str, Exception]]:
        for path in paths:
            try:
                self._locked(lambda path=path: self._fs.rm_file(path))
            except FileNotFoundError:
                continue
        return []

    async def close(self) -> None:
        """Do nothing: the objects stay for the other file systems of this process."""

    def _locked(self, call: Callable[[], ResultT]) -> ResultT:
        with _MEMORY:
            return call()


async def collected(pages: AsyncIterator[Page]) -> Page:
    """Join all pages."""
    return [entry async for page in pages for entry in page]


def _is_absent(error: BaseException) -> bool:
    is_not_there = isinstance(error, FileNotFoundError | NotADirectoryError)
    return is_not_there and not isinstance(error, NoPlace)


def _as_buffer(found: object) -> Buffer:
    """Return the result of a client library as a buffer of bytes, without a copy."""
    if isinstance(found, bytes | bytearray):
        return found
    return memoryview(cast("bytes", found)).cast("B")  # any object with a buffer


def _length(info: dict[str, Any], path: str) -> int:
    if info.get("type") != "file":
        raise FileNotFoundError(errno.ENOENT, "a directory, not an object", path)
    return int(info["size"])


def _modified(info: Mapping[str, Any]) -> Moment | None:
    modified: object = info.get("LastModified") or info.get("last_modified") or info.get("mtime")
    return modified if isinstance(modified, str | datetime | float | int) else None


def _directories(entries: Sequence[dict[str, Any]]) -> list[str]:
    return [entry["name"].rstrip("/") for entry in entries if entry.get("type") == "directory"]


class DurableLocalFileSystem(LocalFileSystem):
    """`file://` that keeps P1, P5, P6 and P9 of CONTRACT.md. All else is as in fsspec.

    For directories that several machines share without locks. For all other directories use a path
    instead, which is better in every way.
    """

    cachable = False

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:  # noqa: ANN401 - as in fsspec
        """Write the whole file under a temporary name, sync it, and link or rename it. Two syncs.

        Raises:
            FileExistsError: with mode "create", the name is taken; the existing file is durable.
        """
        del kwargs
        target = Path(self._strip_protocol(path))
        make_directory(target.parent)
        made = target.parent / f"{TEMPORARY_PREFIX}{uuid4().hex}"
        try:
            with made.open("xb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            if mode == "create":
                target.hardlink_to(made)
            else:
                made.replace(target)
        finally:
            made.unlink(missing_ok=True)
            sync_directory(str(target.parent))

    def rm_file(self, path: str) -> None:
        """Unlink a file, durably."""
        target = Path(self._strip_protocol(path))
        target.unlink()
        sync_directory(str(target.parent))


def make_directory(directory: Path) -> None:
    """Create a directory and its parents, each durably."""
    if is_directory(directory):
        return
    make_directory(directory.parent)
    try:
        directory.mkdir(exist_ok=True)  # another thread may be making it, too
    except FileExistsError as error:
        reason = "a file stands where a directory is needed"
        raise NotADirectoryError(errno.ENOTDIR, reason) from error
    sync_directory(str(directory.parent))


_UNCACHED: Final[Mapping[str, Any]] = {"skip_instance_cache": True, "use_listings_cache": False}
"""Options without caches: a cached listing may be stale, and a cached instance may be bound to an
ended loop."""


def files_and_root(url: str, storage: Mapping[str, Any]) -> tuple[ObjectFiles, str]:
    """Return the adapter of the file system of a URL, and the root in it that the URL has.

    Raises:
        Denied: as `open_object_store`.
    """
    file_system = _file_system_of(url.partition("://")[0], storage)
    return files_of(file_system), str(file_system._strip_protocol(url)).rstrip("/")


def _file_system_of(protocol: str, storage: Mapping[str, Any]) -> AbstractFileSystem:
    """Create a file system without caches, not shared with others.

    Raises:
        Denied: as `open_object_store`.
    """
    if protocol == "file":
        return DurableLocalFileSystem()
    if protocol == "s3":
        return _s3(storage)
    try:
        kind: Any = fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        raise Denied(f"nothing is installed for {protocol}:// URLs: {error}", "") from error
    if kind.async_impl:
        return kind(asynchronous=True, **_UNCACHED, **storage)
    return kind(**_UNCACHED, **storage)


def _s3(storage: Mapping[str, Any]) -> AbstractFileSystem:
    """Create the S3 file system of this package. fsspec's own one overwrites objects on create.

    Raises:
        Denied: its client is not installed, or an option is wrong.
    """
    try:
        from provider.s3.file_system import S3FileSystem  # noqa: PLC0415 - an extra has its client
    except ImportError as error:
        raise Denied("s3:// URLs need obstore: pip install 'tieredstore[s3]'", "") from error
    try:
        return S3FileSystem(asynchronous=True, **storage)
    except ValueError as error:
        raise Denied(str(error), "") from error
