"""Lines of standard input, in batches as they come, read beside an event loop."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator

CHUNK_BYTES = 256 << 10
"""Bytes of one read at most."""
CHUNKS_AHEAD = 2
"""Batches that are read and not taken yet."""


class LineTooLongError(ValueError):
    """A line has no end within the bytes that one message may take."""


class InputLines:
    """The lines of a file, a pipe or a terminal.

    They are read by a thread of their own, because a read of a pipe cannot be given up; it ends
    with the process at the latest. At most `CHUNKS_AHEAD + 1` chunks and one line are held.
    """

    def __init__(self, fd: int, *, line_bytes_max: int) -> None:
        """`fd` stays the caller's. Nothing is read before `batches` is iterated over."""
        self._fd = fd
        self._line_bytes_max = line_bytes_max
        self._found: asyncio.Queue[list[bytes] | Exception | None] = asyncio.Queue()
        self._room = threading.Semaphore(CHUNKS_AHEAD)
        self._loop = asyncio.get_running_loop()

    def end(self) -> None:
        """Let `batches` end behind what was read already."""
        self._found.put_nowait(None)

    async def batches(self) -> AsyncGenerator[list[bytes], None]:
        r"""Lines without their `\n`, as many as came at once; the last one may lack it.

        Raises:
            OSError: it cannot be read.
            LineTooLongError: behind the lines before that one.
        """
        threading.Thread(target=self._read, name="input", daemon=True).start()
        while (found := await self._found.get()) is not None:
            self._room.release()
            if isinstance(found, Exception):
                raise found
            yield found

    def _read(self) -> None:
        rest = b""
        try:
            while chunk := os.read(self._fd, CHUNK_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                if lines and not self._tell(lines):
                    return
                if len(rest) > self._line_bytes_max:
                    too_long = f"it has more than {self._line_bytes_max} bytes"
                    self._tell(LineTooLongError(too_long))
                    return
        except OSError as error:
            self._tell(error)
            return
        if rest:
            self._tell([rest])
        self._tell(None)

    def _tell(self, found: list[bytes] | Exception | None) -> bool:
        """Hand a batch, the error or the end to the loop; False once that is closed."""
        self._room.acquire()
        try:
            self._loop.call_soon_threadsafe(self._found.put_nowait, found)
        except RuntimeError:
            return False
        return True
