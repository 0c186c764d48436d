"""A RocketMQ store directory full of equal-sized messages, made in bulk for measuring.

The records are what a broker 5.x writes for one producer (v1, IPv4 hosts, properties KEYS,
UNIQ_KEY, TAGS and seq, random bodies with their CRC); round robin over the queues of one topic.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from container.record.checksum import body_crc_of
from container.record.header import (
    BORN_HOST_AT,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    BlankRecord,
    layout_of,
)
from container.record.message import StoredMessage
from container.record.properties import encode_properties, tag_hash
from container.record.unit import UNIT_DTYPE

TAG = "TagA"
BODY_CRC_AT = 8
QUEUE_ID_AT = 12
COUNTER_DIGITS = 10
ROWS_AT_ONCE = 16_384
RECORD_BYTES_BESIDE_BODY = 256
CONSUME_QUEUE_FILE_BYTES = 6_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticStore:
    """Shape of a synthetic store."""

    messages: int
    body_bytes: int
    queues: int
    topic: str = "Bench"
    commit_log_file_bytes: int = 1 << 30
    store_timestamp_ms: int = 1_795_262_400_000
    """Of the first message; 1,000 messages share a millisecond."""

    @property
    def memory_bytes(self) -> int:
        """Fresh memory that tiering the store, or reading it back, may need, in bytes.

        Page cache for all records, with headers, properties and units, and as much for the process.
        """
        return 2 * self.messages * (self.body_bytes + RECORD_BYTES_BESIDE_BODY)


def write_synthetic_store(directory: Path, store: SyntheticStore, *, seed: int = 1) -> int:
    """Write the store into a fresh `directory`; returns the bytes of all records.

    About a million messages a second at 100 B; memory is bounded by `ROWS_AT_ONCE` rows.
    """
    maker = _RecordMaker(store, seed)
    size = maker.record_bytes
    per_file = (store.commit_log_file_bytes - BlankRecord.SIZE) // size
    assert per_file > 0, "a CommitLog file holds at least one record"
    index = np.arange(store.messages, dtype=np.int64)
    positions = index // per_file * store.commit_log_file_bytes + index % per_file * size
    commit_log = directory / "commitlog"
    commit_log.mkdir(parents=True)
    for first in range(0, store.messages, per_file):
        base = first // per_file * store.commit_log_file_bytes
        last = min(first + per_file, store.messages)
        with (commit_log / f"{base:020d}").open("wb") as file:
            for at in range(first, last, ROWS_AT_ONCE):
                part = index[at : min(at + ROWS_AT_ONCE, last)]
                file.write(maker.records(part, positions[part]).data)
            if last < store.messages:
                file.write(BlankRecord(store.commit_log_file_bytes - file.tell()).encode())
            file.truncate(store.commit_log_file_bytes)
    _write_consume_queues(directory, store, positions, size)
    (directory / "config").mkdir()
    (directory / "config" / "topics.json").write_text("{}")
    (directory / "checkpoint").write_bytes(bytes(4096))
    return size * store.messages


class _RecordMaker:
    """Makes records from one template by setting the bytes that differ."""

    def __init__(self, store: SyntheticStore, seed: int) -> None:
        mark = "7" * COUNTER_DIGITS
        properties = {
            "KEYS": f"key-{mark}",
            "UNIQ_KEY": f"7F00000100002A18B4AA{mark}00",
            "TAGS": TAG,
            "seq": mark,
        }
        message = StoredMessage.compose(
            store.topic,
            0,
            0,
            body=bytes(store.body_bytes),
            properties=encode_properties(properties),
            born_host=("127.0.0.1", 40_001),
        )
        raw = message.encode()
        self._store = store
        self._template = np.frombuffer(raw, np.uint8)
        self._layout = layout_of(message.sys_flag)
        behind_body = range(self._layout.body + store.body_bytes, len(raw))
        self._counters = [at for at in behind_body if raw.startswith(mark.encode(), at)]
        self._rng = np.random.default_rng(seed)

    @property
    def record_bytes(self) -> int:
        """Length of every record."""
        return len(self._template)

    def records(
        self, numbers: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> NDArray[np.uint8]:
        """The messages of these numbers, a row each."""
        store, layout = self._store, self._layout
        rows = np.tile(self._template, (len(numbers), 1))
        bodies = self._rng.integers(0, 256, (len(numbers), store.body_bytes), np.uint8)
        rows[:, layout.body : layout.body + store.body_bytes] = bodies
        stamps = store.store_timestamp_ms + numbers // 1_000
        _put(rows, BODY_CRC_AT, np.array([body_crc_of(body.data) for body in bodies]), ">i4")
        _put(rows, QUEUE_ID_AT, numbers % store.queues, ">i4")
        _put(rows, QUEUE_OFFSET_AT, numbers // store.queues, ">i8")
        _put(rows, PHYSICAL_OFFSET_AT, positions, ">i8")
        _put(rows, BORN_HOST_AT - 8, stamps, ">i8")
        _put(rows, layout.store_timestamp, stamps, ">i8")
        digits = numbers[:, None] // 10 ** np.arange(COUNTER_DIGITS - 1, -1, -1) % 10 + ord("0")
        for at in self._counters:
            rows[:, at : at + COUNTER_DIGITS] = digits
        return rows


def _put(rows: NDArray[np.uint8], at: int, values: NDArray[np.int64], dtype: str) -> None:
    raw = values.astype(dtype).view(np.uint8).reshape(len(values), -1)
    rows[:, at : at + raw.shape[1]] = raw


def _write_consume_queues(
    directory: Path, store: SyntheticStore, positions: NDArray[np.int64], size: int
) -> None:
    for queue_id in range(min(store.queues, store.messages)):
        mine = positions[queue_id :: store.queues]
        units = np.empty(len(mine), UNIT_DTYPE)
        units["position"], units["size"], units["tag_hash"] = mine, size, tag_hash(TAG)
        folder = directory / "consumequeue" / store.topic / str(queue_id)
        folder.mkdir(parents=True)
        raw = units.tobytes()
        for base in range(0, len(raw), CONSUME_QUEUE_FILE_BYTES):
            with (folder / f"{base:020d}").open("wb") as file:
                file.write(raw[base : base + CONSUME_QUEUE_FILE_BYTES])
                file.truncate(CONSUME_QUEUE_FILE_BYTES)
