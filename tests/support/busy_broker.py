"""A broker that works exactly between two calls of whoever follows it, by seed.

A real broker writes, rolls files over, deletes old ones, deletes topics and makes them again at any
moment. Beside a fast follower, a test of two processes hits a moment between two system calls
once in an hour; here each boundary of the follower's rooms is such a moment, on purpose.
"""

import random
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tieredstore.following.directory.queues as queues_module
import tieredstore.following.log.followed_log as followed_log_module
import tieredstore.following.queues.files as files_module
from container.names.queue_id import QueueId
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from tests.support.fake_broker import FakeBroker
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.followed_log import Pins
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.queues.files import ConsumeQueueFiles

BOUNDARIES: tuple[tuple[object, str], ...] = (
    (followed_log_module, "scan_runs"),
    (files_module, "scan_run"),
    (queues_module, "directories_in"),
    (MappedFiles, "_open"),
    (MappedFiles, "read"),
    (MappedFiles, "peek"),
    (CommitLogFiles, "_open_file"),
    (CommitLogFiles, "fill"),
    (CommitLogFiles, "record"),
    (ConsumeQueueFiles, "rescan"),
    (ConsumeQueueFiles, "units"),
    (ConsumeQueueFiles, "written_end"),
    (Pins, "_pin"),
    (Pins, "_read"),
    (Pins, "_drop"),
)
"""Where the rooms of `following` call the system: directories, open and map, units, records, pins.
"""
FILES_LEFT_MIN = 2
"""CommitLog files that a broker never deletes: its newest."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One message that the broker took."""

    queue: QueueId
    life: int
    """How often the topic had been deleted before."""
    offset: int
    body: bytes


class BusyBroker:
    """What a broker does in one moment, and everything that it ever took.

    It deletes a CommitLog file only when a pin keeps it or nothing in it waits: so whatever a look
    showed can be tiered, and a loss is the follower's.
    """

    def __init__(self, root: Path, rng: random.Random, queues: list[QueueId]) -> None:
        self.broker = FakeBroker(root / "store", commit_log_bytes=2048, consume_queue_bytes=100)
        self.pins = root / "pins"
        self.sent: dict[int, Sent] = {}
        """By position in the CommitLog."""
        self.waiting: Callable[[int], bool] = lambda _position: True
        """Whether the message at a position is still to be tiered."""
        self.deletes_topics = False
        self._rng = rng
        self._queues = queues
        self.lives: dict[QueueId, int] = dict.fromkeys(queues, 0)

    def __repr__(self) -> str:
        return f"<BusyBroker: {len(self.sent)} messages, {self.broker!r}>"

    def act(self) -> None:
        """Do something that a broker does."""
        acts = [self.write, self.delete_log_file, self.delete_units, self.delete_topic]
        self._rng.choices(acts, (10, 4, 4, 2 if self.deletes_topics else 0))[0]()

    def write(self) -> None:
        """Take some messages of one queue."""
        queue = self._rng.choice(self._queues)
        for _ in range(self._rng.choice((1, 1, 2, 6))):
            offset = self.broker.next_offsets.get(queue, 0)
            body = b"%s %d %d " % (str(queue).encode(), self.lives[queue], offset)
            body += bytes(self._rng.choice((0, 40, 300)))
            self.broker.put(queue.topic, queue.queue_id, body)
            position = self.broker.unit(queue.topic, queue.queue_id, offset).position
            self.sent[position] = Sent(queue, self.lives[queue], offset, body)

    def delete_log_file(self) -> None:
        """Delete the oldest file of the CommitLog, and leave its units for now."""
        low, length = self.broker.min_position, self.broker.commit_log_bytes
        if self.broker.position < low + (FILES_LEFT_MIN + 1) * length:
            return
        path = self.broker.log_path(low)
        is_pinned = (self.pins / "commitlog" / path.name).exists()
        inside = [position for position in self.sent if low <= position < low + length]
        if is_pinned or not any(map(self.waiting, inside)):
            path.unlink()
            self.broker.min_position += length

    def delete_units(self) -> None:
        """Delete the oldest file of one queue, if nothing in it is above the CommitLog's begin."""
        queue = self._rng.choice(self._queues)
        for path in self.broker.queue_files(queue)[:1]:
            last = ConsumeQueueUnit(
                *ConsumeQueueUnit.LAYOUT.unpack(path.read_bytes()[-UNIT_BYTES:])
            )
            if last.size and last.position < self.broker.min_position:
                path.unlink()

    def delete_topic(self) -> None:
        """Delete a topic that has messages; the next message of that name makes it again."""
        queue = self._rng.choice(self._queues)
        if queue in self.broker.next_offsets:
            self.broker.delete_topics(queue.topic)
            self.lives[queue] += 1


class Interference:
    """Lets a broker act at the boundaries of the follower's rooms, while it is armed."""

    def __init__(self, act: Callable[[], None], rng: random.Random, share: float) -> None:
        self._act = act
        self._rng = rng
        self._share = share
        self._depth = 1
        self.acts = 0

    @contextmanager
    def armed(self) -> Generator[None]:
        """Act in what is called within; not in what is called by an act."""
        self._depth -= 1
        try:
            yield
        finally:
            self._depth += 1

    @contextmanager
    def paused(self) -> Generator[None]:
        """Act nowhere in what is called within."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make every boundary a moment in which the broker may act, before and after the call."""
        for owner, name in BOUNDARIES:
            monkeypatch.setattr(owner, name, self._between(getattr(owner, name)))

    def _between(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **more: Any) -> Any:
            self._moment()
            try:
                return call(*args, **more)
            finally:
                self._moment()

        return called

    def _moment(self) -> None:
        if self._depth == 0 and self._rng.random() < self._share:
            with self.paused():
                self.acts += 1
                self._act()


def remove(root: Path) -> None:
    """Remove what one seed left."""
    shutil.rmtree(root, ignore_errors=True)
