"""Staged files into a store, in order, each message once, whatever ends it in the middle."""

import asyncio
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import orjson

from container.names.queue_id import QueueId
from dispatcher.topic_filter import QUEUE_ID_MAX
from provider.clock import SystemClock
from provider.errors import Corrupt, NotFound, StoreError, Unavailable
from provider.names import is_there
from provider.posix.files import posix_errors
from tieredstore.config.effective import Config
from tieredstore.hot.encoding import NewMessage
from tieredstore.hot.log.files import replace_file
from tieredstore.hot.log.topics import TopicsFile
from tieredstore.hot.options import ReadLimits
from tieredstore.offline.writing.new_rows import StagedRow, number_in, queue_for, stamp_of
from tieredstore.offline.writing.staging import StagedPart, staged_rows
from tieredstore.store.configured import plan_store
from tieredstore.store.plugins import opened
from tieredstore.store.protocol import MessageStore

DIRECTORY: Final = "writes"
STAGED: Final = "staged"
WRITE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Plan of a write: its files, their order, and the offsets at which it starts."""

    write_id: str
    directory: str
    """Of the staged files."""
    parts: tuple[tuple[str, int], ...]
    """Names of the files in order, with their messages."""
    queues: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of queues of each topic that take turns."""
    starts: Mapping[str, Mapping[int, int]] = field(default_factory=dict[str, Mapping[int, int]])
    """By topic and queue, the first offset that a message of this write may have."""
    is_done: bool = False

    @property
    def messages(self) -> int:
        """All of them."""
        return sum(messages for _, messages in self.parts)

    def encode(self) -> bytes:
        """As a JSON object."""
        return orjson.dumps(
            {
                "id": self.write_id,
                "done": self.is_done,
                "directory": self.directory,
                "parts": self.parts,
                "queues": self.queues,
                "starts": {
                    topic: {str(queue_id): offset for queue_id, offset in offsets.items()}
                    for topic, offsets in self.starts.items()
                },
            }
        )

    @classmethod
    def decode(cls, raw: bytes, *, path: str) -> "WritePlan":
        """Parse the output of `encode`.

        Raises:
            Corrupt: `raw` has another form.
        """
        try:
            found: Any = orjson.loads(raw)
            return cls(
                write_id=found["id"],
                directory=found["directory"],
                parts=tuple((str(name), int(messages)) for name, messages in found["parts"]),
                queues={topic: int(count) for topic, count in found["queues"].items()},
                starts={
                    topic: {int(queue_id): int(offset) for queue_id, offset in offsets.items()}
                    for topic, offsets in found["starts"].items()
                },
                is_done=bool(found["done"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt("this is no record of a write", path) from error


class WriteLedger:
    """The records of a store directory; only who holds the store's lock changes them."""

    def __init__(self, root: Path) -> None:
        self._directory = root / DIRECTORY

    def __repr__(self) -> str:
        return f"<WriteLedger {self._directory}>"

    def load(self, write_id: str) -> WritePlan | None:
        """The write with that id; None if none was begun.

        Raises:
            Corrupt: the record is damaged.
            Denied, Unavailable: it cannot be read.
        """
        path = self._path(write_id)
        with posix_errors(str(path)):
            raw = path.read_bytes() if is_there(path) else None
        return None if raw is None else WritePlan.decode(raw, path=str(path))

    def save(self, plan: WritePlan) -> None:
        """Write it down, durably, wholly or not at all.

        Raises:
            Denied, Unavailable: it cannot be written.
        """
        path = self._path(plan.write_id)
        with posix_errors(str(path)):
            self._directory.mkdir(exist_ok=True)
            replace_file(path, plan.encode())

    def forget(self, write_id: str) -> None:
        """Have no record of it.

        Raises:
            Denied, Unavailable: it cannot be removed.
        """
        path = self._path(write_id)
        with posix_errors(str(path)):
            path.unlink(missing_ok=True)

    def _path(self, write_id: str) -> Path:
        assert WRITE_ID.fullmatch(write_id), "checked where it was given"
        return self._directory / f"{write_id}.json"


LOGGER = logging.getLogger("tieredstore.offline.writing")
BATCH_MESSAGES = 1024
BATCH_BYTES = 4 << 20
"""Of bodies and properties in one call of the store, about."""
READ_MESSAGES = 1024
_READ_LIMITS = ReadLimits(
    memory_messages_max=READ_MESSAGES,
    memory_bytes_max=BATCH_BYTES,
    disk_messages_max=READ_MESSAGES,
    disk_bytes_max=BATCH_BYTES,
)
GROUP = "tieredstore-write"


class UnfinishedWrite(RuntimeError):
    """Write again with the same id: what is missing is appended then, and nothing twice."""


@dataclass(frozen=True, slots=True)
class StagedWrite:
    """A run of a write, with its files in `directory`."""

    write_id: str
    directory: str
    is_named: bool
    """Whether the id was given, so that it may come again when the write is done."""


def append_staged(config: Config, write: StagedWrite, parts: Sequence[StagedPart]) -> int:
    """Append the files of a write to the store that `config` names; then they are removed.

    Of a write that an earlier run began, that run's files are appended from where it ended; of one
    that is done, nothing. Blocks, with a loop of its own: some 10 us a message. Holds one staged
    batch and one batch of messages. Returns how many messages were appended now.

    Raises:
        InUse: another process writes the store; nothing was appended.
        UnfinishedWrite: it ended in the middle; names the way to continue.
        NotFound: a staged file is not there; nothing was appended by this run.
        ConfigError, Denied, Corrupt, Unavailable: as the store; nothing was appended.
    """
    return asyncio.run(_Appending(config, write, parts).run())


def discard_staged(config: Config, write: StagedWrite) -> None:
    """Remove the files of a run that failed, unless its messages began to be appended.

    Raises:
        Corrupt, Denied, Unavailable: the store's record of the write cannot be read.
    """
    plan = WriteLedger(config.store_dir).load(write.write_id)
    if plan is None or plan.directory != write.directory:
        remove_staged(write.directory)


def remove_staged(directory: str) -> None:
    """Remove the files of one run, as far as they can be."""
    shutil.rmtree(directory, ignore_errors=True)
    with suppress(OSError):  # another run of the same write has files there
        Path(directory).parent.rmdir()


class _Appending:
    """State of a call of `append_staged`."""

    def __init__(self, config: Config, write: StagedWrite, parts: Sequence[StagedPart]) -> None:
        self._config = config
        self._write = write
        self._parts = sorted(part for part in parts if part.messages)
        self._ledger = WriteLedger(config.store_dir)
        self._plan: WritePlan | None = None
        self._done = 0
        """Messages that the store has of the write."""

    async def run(self) -> int:
        tiers = self._config.gives("tieredStoreFilePath")
        context, layers = await asyncio.to_thread(
            plan_store, self._config, clock=SystemClock(), tiers=tiers, limits=_READ_LIMITS
        )
        before = 0
        try:
            async with opened(context, layers):
                plan = await asyncio.to_thread(self._ledger.load, self._write.write_id)
                if plan is not None and plan.is_done:
                    given = sum(part.messages for part in self._parts)
                    LOGGER.warning(
                        "the %d messages of the write %s are in the store since an earlier run%s",
                        plan.messages,
                        plan.write_id,
                        ""
                        if given == plan.messages
                        else f", so the {given} given now are not: "
                        "another write needs another writeId",
                    )
                else:
                    if plan is None:
                        plan = await self._begun(layers.outermost)
                    else:
                        self._done = before = await appended_of(layers.outermost, plan)
                    self._plan = plan
                    await self._append(layers.outermost, plan)
            # Only now all of it is durable, whatever `flushDiskType` says.
            if not plan.is_done:
                await asyncio.to_thread(self._finish, plan)
        except (StoreError, OSError) as error:
            if self._plan is None:
                raise
            raise UnfinishedWrite(
                f"{error}: of the write {self._plan.write_id} {self._done} of "
                f"{self._plan.messages} messages are in the store; write again with writeId="
                f"{self._plan.write_id} to have the others, too"
            ) from error
        for directory in {self._write.directory, plan.directory} - {""}:
            await asyncio.to_thread(remove_staged, directory)
        return self._done - before

    async def _begun(self, store: MessageStore) -> WritePlan:
        """Write down what is about to be appended."""
        for part in self._parts:
            await asyncio.to_thread(_find, Path(self._write.directory, part.name))
        topics = sorted(set[str]().union(*(part.topics for part in self._parts)))
        named = set[QueueId]().union(*(part.queues for part in self._parts))
        counts = await asyncio.to_thread(self._queues_of, topics)
        held = {QueueId(topic, one) for topic in topics for one in store.queue_ids(topic)}
        starts: dict[str, dict[int, int]] = {topic: {} for topic in topics}
        for topic, queue_id in sorted(named | held):
            starts[topic][queue_id] = await store.max_offset(topic, queue_id)
        plan = WritePlan(
            write_id=self._write.write_id,
            directory=self._write.directory,
            parts=tuple((part.name, part.messages) for part in self._parts),
            queues=counts,
            starts=starts,
        )
        await asyncio.to_thread(self._ledger.save, plan)
        return plan

    def _queues_of(self, topics: Sequence[str]) -> dict[str, int]:
        path = self._config.store_dir / "config" / "topics.json"
        with posix_errors(str(path)):
            file = TopicsFile(path)
        least = self._config.hot_write.topic_queues
        most = QUEUE_ID_MAX + 1  # an older version entered any number
        return {topic: min(file.write_queues(topic) or least, most) for topic in topics}

    async def _append(self, store: MessageStore, plan: WritePlan) -> None:
        """Append the messages that the store does not have yet; a thread reads the files."""
        batches = _batches(plan, self._done)
        while batch := await asyncio.to_thread(next, batches, None):
            await store.put_messages(batch)
            self._done += len(batch)

    def _finish(self, plan: WritePlan) -> None:
        if self._write.is_named:
            done = replace(
                plan,
                directory="",
                parts=(("", plan.messages),),
                queues={},
                starts={},
                is_done=True,
            )
            self._ledger.save(done)
        else:
            self._ledger.forget(plan.write_id)


async def appended_of(store: MessageStore, plan: WritePlan) -> int:
    """Count the messages of a started write that the store has: always its first ones.

    Reads the messages that its queues got since.

    Raises:
        Unavailable: the count is unknown, because the messages of that time were deleted.
        StoreError: the store cannot be read.
    """
    last, is_whole = -1, True
    for topic, offsets in plan.starts.items():
        for queue_id in sorted({*offsets, *store.queue_ids(topic)}):
            start = offsets.get(queue_id, 0)  # one that had no message has none noted
            end = await store.max_offset(topic, queue_id)
            least = await store.min_offset(topic, queue_id)
            is_whole &= least <= start or least == end == start
            offset = max(start, least)
            while offset < end:
                found = await store.get_message(
                    GROUP, topic, queue_id, offset, messages_max=READ_MESSAGES
                )
                for message in found.messages:
                    number = number_in(plan.write_id, message.property_map)
                    last = max(last, -1 if number is None else number)
                offset = max(found.next_offset, offset + 1)
    if last < 0 and not is_whole:
        raise Unavailable(
            f"the write {plan.write_id} was begun, and the messages from that time were deleted "
            f"since: the appended part is unknown",
            "",
        )
    return last + 1


def _batches(plan: WritePlan, done: int) -> Iterator[list[NewMessage]]:
    """The messages of a write from number `done` on, in calls of the store."""
    held: list[NewMessage] = []
    size = 0
    for number, row in _rows(plan, done):
        queue_id = queue_for(row, number, plan.queues[row.topic])
        properties = row.properties + stamp_of(plan.write_id, number)
        held.append(NewMessage(row.topic, queue_id, row.body, properties))
        size += len(row.body) + len(properties)
        if len(held) >= BATCH_MESSAGES or size >= BATCH_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held


def _rows(plan: WritePlan, done: int) -> Iterator[tuple[int, StagedRow]]:
    before = 0
    for name, messages in plan.parts:
        if done < before + messages:
            skipped = max(0, done - before)
            path = Path(plan.directory, name)
            _find(path)
            yield from enumerate(staged_rows(path, skipped), before + skipped)
        before += messages


def _find(path: Path) -> None:
    """Refuse a missing staged file.

    Raises:
        NotFound: the file is missing; names the possible causes.
    """
    if not is_there(path):
        raise NotFound(
            f"the staged file {path} is not here: name a staging directory (staging) that the "
            f"workers and the driver see under one name, and that no other program clears",
            str(path),
        )
