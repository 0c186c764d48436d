"""What was acknowledged as durable is there, and what was deleted is not, whatever power drops."""

import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from container.names.queue_id import QueueId
from provider.errors import StoreError, Unavailable
from tests.support.disk_model import Disk
from tests.support.hot_store import appender_at, contents, new_message, put, units_after
from tests.support.level import by_level
from tests.support.traced_calls import CallFaults, TracedCalls
from tieredstore.hot.appender import Appender
from tieredstore.hot.encoding import NewMessage
from tieredstore.hot.log.commit_log import CommitLogWriter
from tieredstore.hot.log.consume_queues import QueueFiles
from tieredstore.hot.options import HotWriteOptions, RetentionOptions
from tieredstore.hot.retention import trim

QUEUES = [QueueId("Orders", 0), QueueId("Orders", 1), QueueId("Refunds", 0)]
OPTIONS = HotWriteOptions(commit_log_bytes=16_384, consume_queue_bytes=400, files_open_max=2)
FAULTS = CallFaults(fdatasync=0.01, fsync_file=0.0, fsync_directory=0.01, full=0.05)
RETENTION = RetentionOptions(reserved_s=0, files_max=20)
LIVES = 4
GROUPS = 30
STATES = 40
Written = tuple[QueueId, int, NewMessage, int]
"""Queue, offset, message, and where its record is."""


class ZeroRandom(Random):
    """Of a sparse file, what was never written reads as zeros, and never as garbage."""

    def randbytes(self, n: int) -> bytes:
        return bytes(n)


class Run:
    """Several lives of one store with failing calls, recorded; notes say what was durable."""

    def __init__(self, base: Path, seed: int) -> None:
        self.rng = Random(seed)
        self.calls = TracedCalls(str(base), FAULTS, self.rng)
        self.handed_in: dict[tuple[QueueId, int], list[bytes]] = {}
        self.number = 0
        with self.calls.traced():
            for _ in range(LIVES):
                self.live(base / "store")

    def live(self, root: Path) -> None:
        try:
            with appender_at(root, OPTIONS) as store:
                waiting: list[Written] = []
                for _ in range(GROUPS):
                    waiting += self.append(store)
                    if self.rng.random() < 0.05:
                        self.delete(store, self.rng.choice(["Orders", "Refunds"]))
                        waiting = [one for one in waiting if one[0] in store.next_offsets]
                    if self.rng.random() < 0.7:
                        store.flush()
                        self.calls.note("durable", waiting)
                        waiting = []
                    if self.rng.random() < 0.2:
                        store.flush_queues()
                    if self.rng.random() < 0.15:
                        keep = self.trim(store)
                        waiting = [one for one in waiting if one[3] >= keep]
                if self.rng.random() < 0.5:
                    store.close()
        except (StoreError, OSError):
            return  # a disk that failed: the next life finds out what it holds

    def trim(self, store: Appender) -> int:
        keep = store.log.bases[-1] if store.log.bases else 0  # no message was stored yet
        self.calls.note("trimming", keep)
        before = {queue: list(bases) for queue, bases in store.queues.bases.items()}
        trim(store, lambda _: None, RETENTION, 4e9)
        for queue, bases in before.items():
            gone = [base for base in bases if base not in store.queues.bases.get(queue, bases)]
            self.calls.note("trimmed", queue, gone)
        return keep

    def delete(self, store: Appender, topic: str) -> None:
        queues = [queue for queue in QUEUES if queue.topic == topic]
        self.calls.note("deleting", queues)
        deletion = store.delete_topics({topic})
        if deletion.failed is None:
            self.calls.note("deleted", {queue: store.next_offset(queue) for queue in queues})

    def append(self, store: Appender) -> list[Written]:
        messages: list[NewMessage] = []
        for _ in range(self.rng.randint(1, 4)):
            topic, queue_id = self.rng.choice(QUEUES)
            size = self.rng.choice([10, 300, 5000])
            messages.append(
                new_message(self.number, topic=topic, queue_id=queue_id, body_bytes=size)
            )
            self.number += 1
        found: list[tuple[QueueId, int, NewMessage]] = []
        offsets = {queue: store.next_offset(queue) for queue in QUEUES}
        for message in messages:
            queue = QueueId(message.topic, message.queue_id)
            offset = offsets[queue]
            offsets[queue] = offset + 1
            self.handed_in.setdefault((queue, offset), []).append(message.body)
            found.append((queue, offset, message))
        try:
            places = put(store, messages, 10_000 + 500 * self.number)
        except Unavailable:
            return []  # not there; but a power failure just now may bring it back
        return [(*one, place.position) for one, place in zip(found, places, strict=True)]


@dataclass
class Expected:
    """What a disk must hold, by the notes so far."""

    durable: dict[tuple[QueueId, int], tuple[NewMessage, int]] = field(default_factory=dict)
    """Messages, and their positions in the CommitLog."""
    deleted: dict[QueueId, int] = field(default_factory=dict)
    trimmed: dict[QueueId, list[int]] = field(default_factory=dict)
    """First bytes of ConsumeQueue files that retention deleted, in order."""

    def note(self, *what: Any) -> None:
        match what:
            case ("durable", list(messages)):
                self.durable |= {(queue, offset): (m, at) for queue, offset, m, at in messages}
            case ("trimming", int(keep)):
                self.durable = {
                    one: found for one, found in self.durable.items() if found[1] >= keep
                }
            case ("trimmed", queue, list(gone)):
                self.trimmed.setdefault(queue, []).extend(gone)
            case ("deleting", list(queues)):
                self.durable = {one: m for one, m in self.durable.items() if one[0] not in queues}
                for queue in queues:
                    self.trimmed.pop(queue, None)
            case ("deleted", dict(ends)):
                self.deleted |= ends
            case _:
                raise AssertionError(what)

    def assert_in_order(self, root: Path) -> None:
        """Of files that retention deleted, those that a power failure brings back are the last."""
        for queue, gone in self.trimmed.items():
            there = [
                (root / f"{queue.topic}/{queue.queue_id}/{base:020d}").exists() for base in gone
            ]
            assert there == sorted(there), f"files of {queue} were deleted in any order"

    def assert_held(self, store: Appender, run: Run) -> int:
        """All that was durable is there, and nothing that was never put, or deleted."""
        found = {(queue, m.queue_offset): m for queue, ms in contents(store).items() for m in ms}
        for place, (message, _) in self.durable.items():
            assert found[place].body == message.body, place
            assert found[place].property_map == message.properties
        for (queue, offset), message in found.items():
            assert message.body in run.handed_in[queue, offset], (queue, offset)
            assert offset >= self.deleted.get(queue, 0), (queue, offset)
        for queue, end in store.next_offsets.items():
            assert units_after(store, queue, end) == []
        return len(found)


def judge(
    run: Run, base: Path, scratch: Path, seed: int, moments: Sequence[int] | None = None
) -> int:
    """Lose power at `STATES` moments, or at these, and once more amid half of the recoveries.

    The moments are numbers of calls, ascending. Return how many messages were found.
    """
    rng = ZeroRandom(seed)
    disk = Disk(str(base), rng)
    expected, made, recovered = Expected(), 0, 0
    if moments is None:
        moments = sorted(rng.randrange(len(run.calls.calls)) for _ in range(STATES))
    for number, moment in enumerate(moments):
        for call in run.calls.calls[made:moment]:
            if call[0] == "note":
                expected.note(*call[1:])
            else:
                disk.apply(call)
        made = moment
        state = scratch / f"state-{number}"
        disk.lose_power(state, rng)
        if not (state / "store" / "config").is_dir():
            assert not expected.durable
            continue
        expected.assert_in_order(state / "store/consumequeue")
        if number % 2:
            state = again(state, scratch / f"again-{number}", rng)
        with appender_at(state / "store", OPTIONS) as store:
            recovered += expected.assert_held(store, run)
            put(store, [new_message(1)])
    return recovered


def again(state: Path, scratch: Path, rng: Random) -> Path:
    """The state after another power failure, amid the recovery of the first."""
    calls = TracedCalls(str(state), CallFaults(), rng)
    disk = Disk(str(state), rng)
    disk.load(state)
    with calls.traced(), appender_at(state / "store", OPTIONS):
        pass
    for call in calls.calls[: rng.randrange(len(calls.calls))]:
        disk.apply(call)
    disk.lose_power(scratch, rng)
    return scratch


@pytest.mark.scales
@pytest.mark.parametrize("seed", range(by_level(quick=2, full=4, nightly=100)))
def test_what_was_flushed_is_there_after_a_power_failure(seed: int, tmp_path: Path) -> None:
    base = tmp_path / "disk"
    base.mkdir()
    run = Run(base, seed)
    assert run.calls.struck["file"] + run.calls.struck["full"] > 0
    assert judge(run, base, tmp_path, seed) > 50


MUTANTS: dict[str, tuple[type, str, str]] = {
    "ConsumeQueues": (QueueFiles, "_unlink", "consume_queues.sync_directories"),
    "CommitLog": (CommitLogWriter, "delete_oldest", "commit_log.sync_directory"),
}
"""Of each: the class, its method that deletes a file, and what syncs the directory in it."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_retention_that_does_not_sync_is_caught(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some state after it loses a message, doubles an offset or cannot be read."""
    few_units = replace(OPTIONS, consume_queue_bytes=100)  # several files go at once
    monkeypatch.setattr(sys.modules[__name__], "OPTIONS", few_units)
    owner, method, sync = MUTANTS[name]
    real = getattr(owner, method)

    def mutant(*arguments: Any) -> None:
        with patch(f"tieredstore.hot.log.{sync}", lambda *_: None):
            real(*arguments)

    for seed in range(30):
        base = tmp_path / f"disk-{seed}"
        base.mkdir()
        with patch.object(owner, method, mutant):
            run = Run(base, seed)
        trimmed = [
            number
            for number, call in enumerate(run.calls.calls, 1)
            if call[:2] == ("note", "trimmed") and call[3]
        ]
        try:
            judge(run, base, base, seed, sorted(trimmed * 4))
        except (AssertionError, StoreError):
            return
    pytest.fail("no seed shows it")


def test_a_failed_sync_ends_writing_until_the_store_is_opened_again(tmp_path: Path) -> None:
    def failing(_fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with appender_at(tmp_path, OPTIONS) as store:
        put(store, [new_message(0)])
        with patch("os.fdatasync", failing), pytest.raises(Unavailable, match="may be lost"):
            store.flush()
        for call in (store.flush, lambda: put(store, [new_message(1)])):
            with pytest.raises(Unavailable, match="until the store is opened again"):
                call()
        store.close()
    assert (tmp_path / "abort").exists(), "the next start looks at the records"
    with appender_at(tmp_path, OPTIONS) as store:
        assert len(contents(store)[QUEUES[0]]) == 1
        put(store, [new_message(1)])
