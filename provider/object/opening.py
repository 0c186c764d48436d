"""Opening of a store by URL, and the durable local file system."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportUntypedBaseClass=false

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from provider.clock import Clock
from provider.errors import Denied
from provider.names import TEMPORARY_PREFIX, is_directory
from provider.object.files import files_of
from provider.object.store import FsspecStore
from provider.options import ObjectOptions
from provider.posix.files import sync_directory

# fsspec has no types, and what it lets others call begins with an underscore.


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


# fsspec has no types, and what it lets others call begins with an underscore.


_UNCACHED: Final[Mapping[str, Any]] = {"skip_instance_cache": True, "use_listings_cache": False}
"""Options without caches: a cached listing may be stale, and a cached instance may be bound to an
ended loop."""


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
    file_system = file_system_of(url.partition("://")[0], storage or {})
    root = file_system._strip_protocol(url)  # noqa: SLF001 - fsspec's way to resolve a URL
    return FsspecStore(files_of(file_system), str(root).rstrip("/"), options=options, clock=clock)


def file_system_of(protocol: str, storage: Mapping[str, Any]) -> AbstractFileSystem:
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
