"""fsspec's local file system with creates that are atomic, exclusive and durable.

The stock one looks whether the file is there and then writes it in place: of two owners that race
both succeed, a reader may see half an object, and a power failure takes what was acknowledged.
"""

# fsspec has no types, and what it lets others call begins with an underscore.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportUntypedBaseClass=false

import errno
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

from fsspec.implementations.local import LocalFileSystem

from provider.names import TEMPORARY_PREFIX
from provider.posix_files import sync_directory
from provider.presence import is_directory


class DurableLocalFileSystem(LocalFileSystem):
    """`file://` as CONTRACT.md wants it (P1, P5, P6, P9); everything else as in fsspec.

    For directories that several machines share and that offer no locks. On all others a path
    instead of this is better in every way.
    """

    cachable = False

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:  # noqa: ANN401 - as in fsspec
        """Make the whole file under another name, sync it, and link or move it. Two syncs.

        Raises:
            FileExistsError: with mode "create", something has the name; it is durable by now.
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
    """Make a directory with those above it, each durable."""
    if is_directory(directory):
        return
    make_directory(directory.parent)
    try:
        directory.mkdir(exist_ok=True)  # another thread may be making it, too
    except FileExistsError as error:
        reason = "a file stands where a directory is needed"
        raise NotADirectoryError(errno.ENOTDIR, reason) from error
    sync_directory(str(directory.parent))
