"""Streams of a command and its end: exit status, log formats, named standard output.

Imports nothing that `--help` does not need.
"""

import io
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


TEXT, JSON = "text", "json"


FINDINGS, WRONG_USE, UNAVAILABLE, OWNED, BUG = 1, 2, 3, 4, 70

MEANINGS: Mapping[str, str] = {
    "0": "success",
    "1": "findings, queues that are stopped, messages that were lost in this run, or not found",
    "2": "usage or configuration error",
    "3": "storage or memory unavailable; a later try may succeed",
    "4": "another process owns the tier or the store, or took the tier over",
    "70": "internal error",
    "129, 130, 143": "ended by SIGHUP, SIGINT, SIGTERM (`tier --follow` and `run` end with 0 once"
    " they have committed, `serve` once it has saved the offsets of groups; a second signal ends"
    " them at once)",
}


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
    """The same output, with errors that name it, so that a full disk there is not the tier's.

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
