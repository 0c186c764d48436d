"""What was acknowledged as durable is there, and what was deleted is not, whatever power drops."""

import errno
import os
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from container.names.queue_id import QueueId
from provider.errors import StoreError, Unavailable
from tests.support.disk_model import Disk
from tests.support.hot_store import appender_at, contents, new_message, put, units_after
from tests.support.traced_calls import CallFaults, TracedCalls
from tieredstore.hot.appender import Appender
from tieredstore.hot.encoding import NewMessage
from tieredstore.hot.options import HotWriteOptions

QUEUES = [QueueId("Orders", 0), QueueId("Orders", 1), QueueId("Refunds", 0)]
OPTIONS = HotWriteOptions(commit_log_bytes=16_384, consume_queue_bytes=400, files_open_max=2)
FAULTS = CallFaults(fdatasync=0.01, fsync_file=0.0, fsync_directory=0.01, full=0.05)
LIVES = 4
GROUPS = 30
STATES = 40


class ZeroRandom(Random):
    """Of a sparse file, what was never written reads as zeros, and never as garbage."""

    def randbytes(self, n: int) -> bytes:
        return bytes(n)


class Run:
    """Several lives of one store with failing calls, recorded; `noted` says what was durable."""

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
                waiting: list[tuple[QueueId, int, NewMessage]] = []
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
                if self.rng.random() < 0.5:
                    store.close()
        except (StoreError, OSError):
            return  # a disk that failed: the next life finds out what it holds

    def delete(self, store: Appender, topic: str) -> None:
        queues = [queue for queue in QUEUES if queue.topic == topic]
        self.calls.note("deleting", queues)
        deletion = store.delete_topics({topic})
        if deletion.failed is None:
            self.calls.note("deleted", {queue: store.next_offset(queue) for queue in queues})

    def append(self, store: Appender) -> list[tuple[QueueId, int, NewMessage]]:
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
            put(store, messages, 10_000 + 500 * self.number)
        except Unavailable:
            return []  # not there; but a power failure just now may bring it back
        return found


@pytest.mark.parametrize("seed", range(3))
def test_what_was_flushed_is_there_after_a_power_failure(seed: int, tmp_path: Path) -> None:
    base = tmp_path / "disk"
    base.mkdir()
    run = Run(base, seed)
    assert run.calls.struck["file"] + run.calls.struck["full"] > 0
    rng = ZeroRandom(seed)
    disk = Disk(str(base), rng)
    moments = sorted(rng.randrange(len(run.calls.calls)) for _ in range(STATES))
    durable: dict[tuple[QueueId, int], NewMessage] = {}
    deleted: dict[QueueId, int] = {}
    made = recovered = 0
    for number, moment in enumerate(moments):
        for call in run.calls.calls[made:moment]:
            match call:
                case ("note", "durable", list(messages)):
                    durable |= {(queue, offset): m for queue, offset, m in messages}
                case ("note", "deleting", list(queues)):
                    durable = {place: m for place, m in durable.items() if place[0] not in queues}
                case ("note", "deleted", dict(ends)):
                    deleted |= ends
                case _:
                    disk.apply(call)
        made = moment
        state = tmp_path / f"state-{number}"
        disk.lose_power(state, rng)
        if not (state / "store" / "config").is_dir():
            assert not durable
            continue
        with appender_at(state / "store", OPTIONS) as store:
            found = {
                (queue, m.queue_offset): m for queue, ms in contents(store).items() for m in ms
            }
            for place, message in durable.items():
                assert found[place].body == message.body, (number, place)
                assert found[place].property_map == message.properties
            for (queue, offset), message in found.items():
                assert message.body in run.handed_in[queue, offset], (number, queue, offset)
                assert offset >= deleted.get(queue, 0), (number, queue, offset)
            for queue, end in store.next_offsets.items():
                assert units_after(store, queue, end) == []
            recovered += len(found)
            put(store, [new_message(1)])
    assert recovered > 100


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
