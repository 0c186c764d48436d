"""Messages of the command line on their way into a store: appended in order, printed, counted."""

import sys
from collections.abc import Callable, Sequence

import click

from container.names.queue_id import QueueId
from provider.errors import Closed, StoreError
from tieredstore.cli.input_lines import InputLines, LineTooLongError
from tieredstore.cli.output import Row, write_json
from tieredstore.hot.append_plan import Appended
from tieredstore.hot.encoding import MessageRefused, NewMessage
from tieredstore.store.protocol import MessageStore
from tieredstore.summary import counted

QUEUES_SAID_MAX = 4
"""Queues that are named with their last offsets."""
Decode = Callable[[bytes], NewMessage]


class Appending:
    """Appends to one store. What was appended is printed at once, and stays appended."""

    def __init__(
        self, store: MessageStore, decode: Decode, *, as_json: bool, goes_on: bool = False
    ) -> None:
        """Nothing is read yet.

        Args:
            store: takes the messages; open.
            decode: makes a message of a line.
            as_json: print one JSON object a message.
            goes_on: answer a line that cannot be appended with its number and the error, as an
                object, and go on with the next one.
        """
        self._store = store
        self._decode = decode
        self._as_json = as_json
        self._goes_on = goes_on
        self.count = 0
        """Messages that were appended."""
        self._lines = 0
        self._ends: dict[QueueId, int] = {}

    @property
    def done(self) -> str:
        """What was appended, in words."""
        ends = [f"{queue} up to offset {end}" for queue, end in sorted(self._ends.items())]
        more = len(ends) - QUEUES_SAID_MAX
        listed = ", ".join(ends[:QUEUES_SAID_MAX]) + (
            f" and {more} more queues" if more > 0 else ""
        )
        said = f"appended {counted(self.count, 'message')}"
        return f"{said}: {listed}" if listed else said

    async def append_lines(self, lines: InputLines) -> None:
        """Append a message for each line that is not empty, until they end.

        Raises:
            click.ClickException: a line is no message, or one that the store refuses; names it.
                All before it were appended, and none after it.
            StoreError, OSError: as the store, or the input cannot be read.
        """
        try:
            async for batch in lines.batches():
                await self._append_batch(batch)
        except LineTooLongError as error:
            self._refuse(self._lines + 1, str(error))

    async def append(
        self, messages: Sequence[NewMessage], lines: Sequence[int] | None = None
    ) -> None:
        """Append messages, which stood in those lines, and print where they are.

        Raises:
            MessageRefused: the store refuses one of them; none was appended.
        """
        places = await self._store.put_messages(messages)
        self.count += len(places)
        for message, place in zip(messages, places, strict=True):
            self._ends[QueueId(message.topic, message.queue_id)] = place.queue_offset
        if self._as_json:
            numbers = [None] * len(places) if lines is None else lines
            write_json(map(_row, messages, places, numbers))
        else:
            pairs = zip(messages, places, strict=True)
            click.echo("\n".join(f"{m.topic}\t{m.queue_id}\t{p.queue_offset}" for m, p in pairs))
        sys.stdout.flush()

    async def _append_batch(self, batch: Sequence[bytes]) -> None:
        """Append runs of good lines, each at once; a bad one stands between two of them."""
        first = self._lines + 1
        self._lines += len(batch)
        good: list[tuple[int, NewMessage]] = []
        for number, line in enumerate(batch, first):
            if not line.strip(b"\r"):
                continue
            try:
                good.append((number, self._decode(line)))
            except MessageRefused as error:
                await self._append_run(good)
                good = []
                self._refuse(number, sentence_of(error))
        await self._append_run(good)

    async def _append_run(self, good: Sequence[tuple[int, NewMessage]]) -> None:
        """Append all at once; where one is refused, one by one."""
        if not good:
            return
        try:
            lines, messages = zip(*good, strict=True)
            await self.append(messages, lines)
        except MessageRefused as error:
            if len(good) == 1:
                self._refuse(good[0][0], sentence_of(error))
                return
            for one in good:
                await self._append_run([one])
        except StoreError as error:
            if not self._goes_on or isinstance(error, Closed):
                raise
            for number, _ in good:
                self._refuse(number, error.reason)

    def _refuse(self, line: int, reason: str) -> None:
        """Answer a line that was not appended."""
        if not self._goes_on:
            raise click.ClickException(f"line {line}: {reason}")
        write_json([{"line": line, "error": reason}])
        sys.stdout.flush()


def _row(message: NewMessage, place: Appended, line: int | None) -> Row:
    return {
        **({} if line is None else {"line": line}),
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": place.queue_offset,
        "store_timestamp": place.store_timestamp,
        "store_size": place.size,
        "physical_offset": place.position,
    }


def sentence_of(refused: MessageRefused) -> str:
    """A refusal as a part of the sentence that a command ends with."""
    text = str(refused).removesuffix(".")
    return f"{text[:1].lower()}{text[1:]}"


def with_done(error: StoreError, appending: Appending) -> StoreError:
    """The same error, which says what was appended before it, if anything was."""
    if appending.count:
        error.reason = f"{error.reason}; before that: {appending.done}"
    return error
