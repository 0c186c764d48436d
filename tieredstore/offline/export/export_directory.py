"""Directory of an export: one of this host, or one at a URL of any file system of fsspec.

A file is whole under its name, or it is not there. At a URL it is made in memory: object stores
get it by one call, file systems of Arrow (HDFS) by a rename, others by a transaction of fsspec.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false
# pyarrow and fsspec ship no types.
import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.memory import MemoryFileSystem

from container.errors import InUse
from provider.errors import AlreadyExists, Denied, NotFound
from provider.names import is_directory, is_there
from provider.object.files import fsspec_errors
from provider.posix.files import sync_directory
from provider.setting import Kind
from tieredstore.config.effective import Config
from tieredstore.config.keys import KEYS, SCHEME
from tieredstore.config.location import Location, location_at
from tieredstore.offline.export.lease import ExportLease
from tieredstore.session.places import s3_options

TEMPORARY_SUFFIX = ".tmp"
LEDGER = "_tieredstore"
LOCK = f"{LEDGER}/lock"
_OF_OBJECT_STORE = [key for name, key in KEYS.items() if name.startswith("objectStore")]


class ExportPlace(NamedTuple):
    """Location of an export, safe to send to other processes: it has no secret."""

    location: str
    """An absolute path, or a URL."""
    settings: tuple[tuple[str, str], ...] = ()
    """Keys of the configuration that say how an object store is reached; credentials come from the
    environment of each worker."""

    @classmethod
    def of(cls, location: Location, config: Config) -> Self:
        """Return the place of an export."""
        if isinstance(location, Path):
            return cls(str(location.absolute()))
        given = (config.settings[key.name] for key in _OF_OBJECT_STORE)
        names = {
            one.key.name: str(one.value)
            for one in given
            if one.key.kind is not Kind.SECRET and one.value != one.key.default
        }
        return cls(str(location), tuple(names.items()))


class NewFile(Protocol):
    """File that is being written. Nothing has its name before `complete`."""

    sink: Any
    """Argument of `ParquetWriter`, which is closed first."""

    def complete(self) -> int:
        """Give the file its name, durably. Return its length in bytes."""
        ...

    def discard(self) -> None:
        """Give it up. Idempotent."""
        ...


class ExportDirectory(Protocol):
    """Files of an export by their names below its directory, which need not exist.

    All calls raise `OSError`, or `Denied` and `Unavailable` at a URL.
    """

    def entries(self) -> list[str]:
        """List what is directly in the directory; [] if there is none."""
        ...

    def names(self, below: str = "") -> list[str]:
        """List all files in a directory and in those below it, sorted; [] if there is none."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Write a small file, replacing one of that name."""
        ...

    def create(self, name: str, content: bytes) -> None:
        """Write a small file; raise `AlreadyExists` if the name is taken."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file. Idempotent."""
        ...

    def new_file(self, name: str) -> NewFile:
        """Begin a Parquet file."""
        ...

    def footer(self, name: str) -> tuple[Any, int] | None:
        """Return the `FileMetaData` and the length in bytes of a Parquet file; None: no file."""
        ...

    def remove_remains(self) -> None:
        """Delete temporary files of processes that were killed. By the writer alone."""
        ...

    def lock(self) -> AbstractContextManager[object]:
        """Keep other writers out during a block; raise `InUse` if there is one."""
        ...


def directory_at(place: ExportPlace) -> ExportDirectory:
    """Return the directory of an export. No request.

    Raises:
        ConfigError: a setting in this process's environment is wrong.
        Denied: no file system is installed for such URLs.
    """
    location = location_at(place.location)
    if isinstance(location, Path):
        return LocalDirectory(location)
    return UrlDirectory(*_file_system(place))


def _file_system(place: ExportPlace) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a URL, without caches, and the path in it."""
    scheme = place.location.partition("://")[0]
    if scheme == SCHEME:
        try:
            from provider.s3.file_system import S3FileSystem  # noqa: PLC0415 - an extra has it
        except ImportError as error:
            raise Denied("s3:// URLs need obstore: pip install 'tieredstore[s3]'", "") from error
        file_system = S3FileSystem(**s3_options(Config.load(settings=dict(place.settings))))
        return file_system, str(file_system._strip_protocol(place.location))  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - fsspec has no public name
    try:
        return fsspec.url_to_fs(place.location, skip_instance_cache=True, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise Denied(f"nothing is installed for {scheme}:// URLs: {error}", "") from error


def _temporary_name(name: str) -> str:
    """Return a free name of a file that readers of the export ignore."""
    return f".{name}.{os.getpid()}-{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"


def _is_temporary(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last.startswith(".") and last.endswith(TEMPORARY_SUFFIX)


class LocalDirectory:
    """`ExportDirectory` of this host. Files are synced before they get their names."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __repr__(self) -> str:
        return f"<LocalDirectory {self._root}>"

    def entries(self) -> list[str]:
        """`ExportDirectory.entries`."""
        return [one.name for one in self._root.iterdir()] if is_directory(self._root) else []

    def names(self, below: str = "") -> list[str]:
        """`ExportDirectory.names`."""
        return sorted(
            os.path.relpath(os.path.join(at, name), self._root)  # noqa: PTH118 - of many files
            for at, _, files in os.walk(self._root / below)
            for name in files
        )

    def read(self, name: str) -> bytes | None:
        """`ExportDirectory.read`."""
        try:
            return (self._root / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """`ExportDirectory.write`."""
        made = self.new_file(name)
        made.sink.write_bytes(content)
        made.complete()

    def create(self, name: str, content: bytes) -> None:
        """`ExportDirectory.create`; the caller has the lock."""
        if is_there(self._root / name):
            raise AlreadyExists("the name is taken", name)
        self.write(name, content)

    def remove(self, name: str) -> None:
        """`ExportDirectory.remove`."""
        (self._root / name).unlink(missing_ok=True)

    def new_file(self, name: str) -> "_HiddenFile":
        """`ExportDirectory.new_file`."""
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return _HiddenFile(target)

    def footer(self, name: str) -> tuple[Any, int] | None:
        """`ExportDirectory.footer`."""
        path = self._root / name
        return (pq.read_metadata(path), path.stat().st_size) if is_there(path) else None

    def remove_remains(self) -> None:
        """`ExportDirectory.remove_remains`."""
        for name in self.names():
            if _is_temporary(name):
                self.remove(name)

    @contextmanager
    def lock(self) -> Generator[None]:
        """`ExportDirectory.lock`."""
        path = self._root / LOCK
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InUse(
                    "another process writes this export: wait until it has ended", str(self._root)
                ) from error
            yield
        finally:
            os.close(descriptor)


class _HiddenFile:
    """`NewFile` under a temporary name beside its target."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.sink = target.with_name(_temporary_name(target.name))

    def complete(self) -> int:
        with self.sink.open("rb") as file:
            os.fsync(file.fileno())
        size = self.sink.stat().st_size
        self.sink.replace(self._target)
        sync_directory(str(self._target.parent))
        return size

    def discard(self) -> None:
        self.sink.unlink(missing_ok=True)


class UrlDirectory:
    """`ExportDirectory` at a URL. Memory: the file that is being made or read."""

    def __init__(self, file_system: AbstractFileSystem, root: str) -> None:
        self._fs: Any = file_system
        self._root = root.rstrip("/")
        self._writes_whole = isinstance(file_system, AsyncFileSystem | MemoryFileSystem)
        """Object stores have whole objects alone, and no directories."""
        self._renames = isinstance(file_system, ArrowFSWrapper)
        """Files of Arrow take no part in transactions of fsspec."""

    def __repr__(self) -> str:
        return f"<UrlDirectory {self._root}: {self._fs!r}>"

    def entries(self) -> list[str]:
        """`ExportDirectory.entries`. One request a thousand entries."""
        with fsspec_errors(self._root):
            self._fs.invalidate_cache()
            try:
                found: list[str] = self._fs.ls(self._root, detail=False)
            except FileNotFoundError:
                return []
        return [self._below(path) for path in found if self._below(path)]

    def names(self, below: str = "") -> list[str]:
        """`ExportDirectory.names`. One request a thousand files."""
        with fsspec_errors(below):
            self._fs.invalidate_cache()
            try:
                found: list[str] = self._fs.find(self._path(below))
            except FileNotFoundError:
                return []
        return sorted(map(self._below, found))

    def read(self, name: str) -> bytes | None:
        """`ExportDirectory.read`."""
        with suppress(NotFound), fsspec_errors(name):
            return bytes(self._fs.cat_file(self._path(name)))
        return None

    def write(self, name: str, content: bytes) -> None:
        """`ExportDirectory.write`."""
        path = self._path(name)
        with fsspec_errors(name):
            if self._writes_whole:
                self._fs.pipe_file(path, content)
                return
            self._make_parent(path)
            if self._renames:
                self._rename_to(path, content)
                return
            with self._fs.transaction as transaction, self._fs.open(path, "wb") as file:
                if not hasattr(file, "commit"):
                    transaction.files.clear()
                    file.close()
                    self._fs.rm_file(path)
                    raise Denied(
                        "this file system shows files before they are whole (fsspec's "
                        "transactions are not implemented): mount it, and export into a directory",
                        name,
                    )
                file.write(content)

    def create(self, name: str, content: bytes) -> None:
        """`ExportDirectory.create`.

        If the file system has no create-if-absent, fsspec looks before it writes, and of two
        writers at once both may succeed.
        """
        path = self._path(name)
        with fsspec_errors(name):
            if not self._writes_whole:
                self._make_parent(path)
            if not self._renames:
                self._fs.pipe_file(path, content, mode="create")
            elif self.read(name) is not None:
                raise AlreadyExists("the name is taken", name)
            else:
                self._rename_to(path, content)

    def remove(self, name: str) -> None:
        """`ExportDirectory.remove`."""
        with suppress(NotFound), fsspec_errors(name):
            self._fs.rm_file(self._path(name))

    def new_file(self, name: str) -> "_BufferedFile":
        """`ExportDirectory.new_file`."""
        return _BufferedFile(self, name)

    def footer(self, name: str) -> tuple[Any, int] | None:
        """`ExportDirectory.footer`."""
        with suppress(NotFound), fsspec_errors(name):
            path = self._path(name)
            self._fs.invalidate_cache()
            size = int(self._fs.info(path)["size"])
            with self._fs.open(path, "rb") as file:
                return pq.read_metadata(file), size
        return None

    def remove_remains(self) -> None:
        """`ExportDirectory.remove_remains`."""
        for name in self.names() if self._renames else ():
            if _is_temporary(name):
                self.remove(name)

    def lock(self) -> ExportLease:
        """`ExportDirectory.lock`."""
        return ExportLease(self, LOCK, self._root)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _rename_to(self, path: str, content: bytes) -> None:
        parent, _, last = path.rpartition("/")
        hidden = f"{parent}/{_temporary_name(last)}"
        with self._fs.open(hidden, "wb") as file:
            file.write(content)
        self._fs.mv(hidden, path)

    def _make_parent(self, path: str) -> None:
        self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)

    def _below(self, path: str) -> str:
        return path.removeprefix(self._root).strip("/")


class _BufferedFile:
    """`NewFile` in memory."""

    def __init__(self, directory: UrlDirectory, name: str) -> None:
        self._directory = directory
        self._name = name
        self.sink = pa.BufferOutputStream()

    def complete(self) -> int:
        content: bytes = self.sink.getvalue().to_pybytes()
        self._directory.write(self._name, content)
        return len(content)

    def discard(self) -> None:
        self.sink.close()
