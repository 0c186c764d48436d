"""From a URL to a store: the file system that it names, and the path in it."""

# fsspec has no types, and what it lets others call begins with an underscore.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportUntypedBaseClass=false

from collections.abc import Mapping
from typing import Any, Final

import fsspec
from fsspec import AbstractFileSystem

from provider.clock import Clock
from provider.errors import Denied
from provider.object.durable_local import DurableLocalFileSystem
from provider.object.files import files_of
from provider.object.options import ObjectOptions
from provider.object.store import FsspecStore

_UNCACHED: Final[Mapping[str, Any]] = {"skip_instance_cache": True, "use_listings_cache": False}
"""A listing from a cache lacks what others wrote; an instance may be bound to an ended loop."""


def open_object_store(
    url: str,
    *,
    options: ObjectOptions | None = None,
    clock: Clock | None = None,
    storage: Mapping[str, Any] | None = None,
) -> FsspecStore:
    """A store below a URL, such as `s3://bucket/prefix`; `storage` are its file system's options.

    Nothing is requested; whether the storage keeps its promises is what `probe` finds out.

    Raises:
        Denied: nothing is installed for such URLs, or it is known to be unsafe.
    """
    file_system = file_system_of(url.partition("://")[0], storage or {})
    root = file_system._strip_protocol(url)  # noqa: SLF001 - how fsspec says what a URL means
    return FsspecStore(files_of(file_system), str(root).rstrip("/"), options=options, clock=clock)


def file_system_of(protocol: str, storage: Mapping[str, Any]) -> AbstractFileSystem:
    """A file system of its own, without caches.

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
    """Ours, not the one that fsspec has under this name: that creates over what is there.

    Raises:
        Denied: its client is not installed, or an option is wrong.
    """
    try:
        from provider.s3.file_system import S3FileSystem  # noqa: PLC0415 - an extra has its client
    except ImportError as error:
        raise Denied(
            "s3:// URLs need the extra s3, as in `pip install tieredstore[s3]`", ""
        ) from error
    try:
        return S3FileSystem(asynchronous=True, **storage)
    except ValueError as error:
        raise Denied(str(error), "") from error
