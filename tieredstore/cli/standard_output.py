"""Standard output whose errors say that it is standard output which failed."""

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NAME = "standard output"
BUFFER_BYTES = 64 << 10


class _NamedFile(io.FileIO):
    """A descriptor whose errors of writing bear a name, as those of opened files do."""

    def write(self, data: "ReadableBuffer", /) -> int | None:
        """Write, as `FileIO`."""
        try:
            return super().write(data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, NAME) from None


def named_output(stream: TextIO) -> TextIO:
    """The same output, with errors that name it: what is full is then not taken for the tier.

    Nothing may have been written to `stream`; its descriptor stays open when the new one is closed.
    """
    raw = _NamedFile(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw, BUFFER_BYTES),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty(),
    )


def flush_errors() -> None:
    """Flush standard error; discard what cannot be written, which would change the exit status."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def give_up_output() -> None:
    """Discard what is left to print, so that flushing it at the end does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
