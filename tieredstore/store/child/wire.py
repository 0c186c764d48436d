"""Calls, results and notes between a store's process and its tiering process.

Frames are pickles with their length before them, over a pair of sockets that no other process has.
Both ends call. Notes and results arrive in the order in which they were sent.
"""

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import count
from struct import Struct
from typing import Any, NamedTuple

from provider.errors import Unavailable

_LENGTH = Struct("<Q")
ENDED = "the other process ended"


class Note(NamedTuple):
    """Message without a result."""

    name: str
    arguments: tuple[object, ...]


class Call(NamedTuple):
    """Message that waits for a result."""

    number: int
    name: str
    arguments: tuple[object, ...]


class Result(NamedTuple):
    """Result of the call of that number."""

    number: int
    value: object


class Failure(NamedTuple):
    """Error of the call of that number."""

    number: int
    error: Exception


Frame = Note | Call | Result | Failure


def encode(frame: Frame) -> bytes:
    """Return a frame with its length. An error that cannot be pickled is sent as its text."""
    if isinstance(frame, Failure):
        frame = Failure(frame.number, portable(frame.error))
    body = pickle.dumps(frame, pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def portable(error: Exception) -> Exception:
    """Return the error, or `Unavailable` with its text if the other process could not read it."""
    try:
        found: object = pickle.loads(pickle.dumps(error))  # noqa: S301 - of this process
        if type(found) is type(error):
            return error
    except Exception:  # noqa: BLE001, S110 - foreign errors may have any constructor
        pass
    return Unavailable(f"{type(error).__name__}: {error}", "")


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """Return the next frame; None once the other end is gone, even amid a frame."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))  # noqa: S301 - of our own process
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class Peer:
    """End of the connection. `run` serves it until the other end is gone."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        calls: Mapping[str, Callable[..., Awaitable[object]]],
        notes: Mapping[str, Callable[..., None]],
    ) -> None:
        """`calls` and `notes`: the functions that the other end calls, by name."""
        self._reader = reader
        self._writer = writer
        self._calls = calls
        self._notes = notes
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self.is_over = False
        """Whether the other end is gone."""

    def __repr__(self) -> str:
        return f"<Peer: {len(self._waiting)} calls wait{', over' if self.is_over else ''}>"

    async def call(self, name: str, *arguments: object) -> Any:  # noqa: ANN401 - as the function's
        """Call a function of the other end. Cancelling does not stop it there.

        Raises:
            Unavailable: the other process ended before its result arrived (`is_over`).
            And the errors of the function.
        """
        if self.is_over:
            raise Unavailable(ENDED, "")
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._write(Call(number, name, arguments))
        try:
            return await answer
        finally:
            del self._waiting[number]

    def note(self, name: str, *arguments: object) -> None:
        """Send a note. Nothing is sent once the other end is gone."""
        self._write(Note(name, arguments))

    async def drained(self) -> None:
        """Wait while much is on its way to the other end."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return  # `run` notices the end

    async def run(self) -> None:
        """Serve the other end until it is gone. Its calls that still run are cancelled then."""
        try:
            async with asyncio.TaskGroup() as group:
                while (frame := await read_frame(self._reader)) is not None:
                    if isinstance(frame, Call):
                        task = group.create_task(self._serve(frame))
                        self._serving.add(task)
                        task.add_done_callback(self._serving.discard)
                    else:
                        self._take(frame)
                for task in self._serving:
                    task.cancel()
        finally:
            self.is_over = True
            self._writer.close()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(Unavailable(ENDED, ""))

    async def finish(self) -> None:
        """Answer the calls that are served, then end the connection."""
        if self._serving:
            await asyncio.wait(self._serving)
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()

    def _take(self, frame: Note | Result | Failure) -> None:
        if isinstance(frame, Note):
            self._notes[frame.name](*frame.arguments)
            return
        answer = self._waiting.get(frame.number)
        if answer is None or answer.done():
            return  # its caller was cancelled
        if isinstance(frame, Result):
            answer.set_result(frame.value)
        else:
            answer.set_exception(frame.error)

    async def _serve(self, call: Call) -> None:
        try:
            value = await self._calls[call.name](*call.arguments)
        except Exception as error:  # noqa: BLE001 - raised in the caller
            self._write(Failure(call.number, error))
        else:
            self._write(Result(call.number, value))

    def _write(self, frame: Frame) -> None:
        if not (self.is_over or self._writer.is_closing()):
            self._writer.write(encode(frame))
