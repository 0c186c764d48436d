"""Writes a store directory as a RocketMQ broker does: for tests, soaks and benchmarks.

Synchronous and fast: `put` for single messages, `put_many` and `fill` for millions. Files have
their whole length from the start and zeros where nothing is written yet.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from struct import Struct

import numpy as np

from container.names.queue_id import QueueId
from container.names.rocketmq import local_file_name
from container.record.batch import HEADER_DTYPE, encode_units
from container.record.checksum import body_crc_of
from container.record.header import BlankRecord, layout_of
from container.record.message import StoredMessage
from container.record.properties import KEYS, TAGS, encode_properties, tag_hash
from container.record.unit import FILLER_SIZE, UNIT_BYTES, ConsumeQueueUnit

FIRST_STORE_TIMESTAMP = 1_700_000_000_000
CHUNK_BYTES_MAX = 32 << 20
CONFIRM_OFFSET_AT = 32
_INT64 = Struct(">q")


class FakeBroker:
    """One store directory and the positions that a broker would keep in memory."""

    def __init__(
        self,
        directory: Path,
        *,
        commit_log_bytes: int = 1 << 20,
        consume_queue_bytes: int = 20_000,
        now_ms: int = FIRST_STORE_TIMESTAMP,
        start: int = 0,
        commit_logs: Sequence[Path] = (),
    ) -> None:
        """Begin an empty store whose CommitLog begins at `start`, where a file begins.

        `commit_logs` are its directories, to which the files go in turn.
        """
        assert consume_queue_bytes % UNIT_BYTES == 0
        assert start % commit_log_bytes == 0
        self.directory = directory
        self.commit_logs = sorted(commit_logs) or [directory / "commitlog"]
        self.commit_log_bytes = commit_log_bytes
        self.consume_queue_bytes = consume_queue_bytes
        self.now_ms = now_ms
        self.min_position = start
        self.position = start
        """Where the next record goes, in the CommitLog."""
        self.next_offsets: dict[QueueId, int] = {}
        for path in (directory / "consumequeue", directory / "config", *self.commit_logs):
            path.mkdir(parents=True, exist_ok=True)
        self._made: set[Path] = set()
        self._topics: dict[str, dict[str, object]] = {}
        (directory / "abort").write_text("1")
        (directory / "lock").write_text("lock")
        (directory / "checkpoint").write_bytes(bytes(4096))
        self._write_topics()

    def __repr__(self) -> str:
        return (
            f"<FakeBroker {self.directory}: [{self.min_position}, {self.position}), "
            f"{len(self.next_offsets)} queues>"
        )

    def create_topic(
        self, topic: str, attributes: Mapping[str, str] | None = None, **settings: object
    ) -> None:
        """Enter a topic into config/topics.json."""
        self._topics[topic] = {
            "attributes": dict(attributes or {}),
            "perm": 6,
            "readQueueNums": 4,
            "topicName": topic,
            "writeQueueNums": 4,
            **settings,
        }
        self._write_topics()

    def begin_queue(self, topic: str, queue_id: int, offset: int) -> None:
        """Let a queue begin at `offset`, with fillers before it in its first file, as Java does."""
        queue = QueueId(topic, queue_id)
        self.next_offsets[queue] = offset
        first = offset * UNIT_BYTES // self.consume_queue_bytes * self.consume_queue_bytes
        filler = ConsumeQueueUnit(0, FILLER_SIZE, 0).encode()
        self._write_queue(queue, first // UNIT_BYTES, filler * (offset - first // UNIT_BYTES))

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes = b"body",
        *,
        tags: str = "",
        keys: str = "",
        properties: Mapping[str, str] | None = None,
        sys_flag: int = 0,
        with_unit: bool = True,
    ) -> int:
        """Append one message; returns its queue offset. Without a unit it is not dispatched yet."""
        queue = QueueId(topic, queue_id)
        offset = self.next_offsets.get(queue, 0)
        pairs = {**(properties or {}), KEYS: keys, TAGS: tags}
        message = StoredMessage.compose(
            topic,
            queue_id,
            offset,
            body=body,
            properties=encode_properties(pairs),
            sys_flag=sys_flag,
            born_timestamp=self.now_ms - 1,
            store_timestamp=self.now_ms,
        )
        position = self._room_for(message.size)
        raw = bytearray(message.encode())
        raw[28:36] = _INT64.pack(position)
        self._write_log(position, raw)
        self.position += len(raw)
        self.now_ms += 1
        if with_unit:
            self.put_unit(queue, offset, ConsumeQueueUnit(position, len(raw), tag_hash(tags)))
            self.next_offsets[queue] = offset + 1
        return offset

    def put_unit(self, queue: QueueId, offset: int, unit: ConsumeQueueUnit) -> None:
        """Write a unit, whatever it says: how damage is made too."""
        self._write_queue(queue, offset, unit.encode())

    def put_many(self, topic: str, queue_id: int, bodies: Sequence[bytes], tags: str = "") -> int:
        """Append messages of one queue; fast when many neighbours have bodies of one length.

        Returns:
            The first one's queue offset.
        """
        first = self.next_offsets.get(QueueId(topic, queue_id), 0)
        at = 0
        while at < len(bodies):
            length = len(bodies[at])
            end = at + 1
            while end < len(bodies) and len(bodies[end]) == length:
                end += 1
            self._put_alike([QueueId(topic, queue_id)], end - at, bodies[at:end], tags)
            at = end
        return first

    def fill(
        self, topic: str, queue_ids: Sequence[int], messages: int, body_bytes: int, seed: int = 0
    ) -> None:
        """Append `messages` messages to the queues in turn, bodies from a seed. 100 MB/s and up."""
        rng = np.random.default_rng(seed)
        bodies = [rng.bytes(body_bytes) for _ in range(61)]  # coprime to usual queue counts
        queues = [QueueId(topic, queue_id) for queue_id in queue_ids]
        self._put_alike(queues, messages, bodies, "TagA")

    def delete_oldest_file(self) -> int:
        """Delete the first CommitLog file, and ConsumeQueue files with nothing above it.

        Returns:
            The CommitLog's first position now.
        """
        self.log_path(self.min_position).unlink()
        self.min_position += self.commit_log_bytes
        for queue in self.next_offsets:
            for path in self.queue_files(queue)[:-1]:  # never the last one
                last = path.read_bytes()[-UNIT_BYTES:]
                if ConsumeQueueUnit.LAYOUT.unpack(last)[0] >= self.min_position:
                    break
                path.unlink()
        return self.min_position

    def delete_topics(self, *topics: str) -> None:
        """Remove topics and their ConsumeQueues, as an administrator's command does.

        The CommitLog keeps the records. A topic of such a name counts from 0 again.
        """
        for topic in topics:
            self._topics.pop(topic, None)
            directory = self.directory / "consumequeue" / topic
            self._made = {path for path in self._made if directory not in path.parents}
            shutil.rmtree(directory)
        for queue in [queue for queue in self.next_offsets if queue.topic in topics]:
            del self.next_offsets[queue]
        self._write_topics()

    def crash(self, lost_bytes: int) -> None:
        """Lose the last bytes of the CommitLog; the units stay. `abort` stays, too."""
        while lost_bytes:
            base = (self.position - 1) // self.commit_log_bytes * self.commit_log_bytes
            length = min(lost_bytes, self.position - base)
            self.position -= length
            lost_bytes -= length
            self._write_log(self.position, bytes(length))

    def stop(self) -> None:
        """A clean end."""
        (self.directory / "abort").unlink(missing_ok=True)

    def confirm(self, position: int) -> None:
        """Set the confirm offset in the checkpoint."""
        with (self.directory / "checkpoint").open("r+b") as checkpoint:
            checkpoint.seek(CONFIRM_OFFSET_AT)
            checkpoint.write(_INT64.pack(position))

    def unit(self, topic: str, queue_id: int, offset: int) -> ConsumeQueueUnit:
        """What stands in a queue's file."""
        path, place = self._queue_place(QueueId(topic, queue_id), offset)
        raw = path.read_bytes()[place : place + UNIT_BYTES]
        return ConsumeQueueUnit(*ConsumeQueueUnit.LAYOUT.unpack(raw))

    def damage(self, position: int, raw: bytes) -> None:
        """Overwrite bytes of the CommitLog."""
        self._write_log(position, raw)

    def log_path(self, position: int) -> Path:
        """The CommitLog file that holds a position."""
        number = position // self.commit_log_bytes
        directory = self.commit_logs[number % len(self.commit_logs)]
        return directory / local_file_name(number * self.commit_log_bytes)

    def queue_files(self, queue: QueueId) -> list[Path]:
        """A queue's files, oldest first."""
        directory = self.directory / "consumequeue" / queue.topic / str(queue.queue_id)
        return sorted(directory.iterdir()) if directory.exists() else []

    def _put_alike(
        self, queues: Sequence[QueueId], count: int, bodies: Sequence[bytes], tags: str
    ) -> None:
        """Append messages of one length to the queues in turn; message i has body i, repeated."""
        width = len(queues)
        message = StoredMessage.compose(
            queues[0].topic,
            0,
            0,
            body=bodies[0],
            properties=encode_properties({TAGS: tags}),
            born_timestamp=self.now_ms,
            store_timestamp=self.now_ms,
        )
        size, body_at = message.size, layout_of(0).body
        template = np.frombuffer(message.encode(), np.uint8)
        pool = np.frombuffer(b"".join(bodies), np.uint8).reshape(len(bodies), len(bodies[0]))
        crcs = np.array([body_crc_of(body) for body in bodies], np.int64)
        firsts = np.array([self.next_offsets.get(queue, 0) for queue in queues], np.int64)
        ids = np.array([queue.queue_id for queue in queues], np.int64)
        done = 0
        while done < count:
            position = self._room_for(size)
            left = self.commit_log_bytes - position % self.commit_log_bytes - BlankRecord.SIZE
            n = min(count - done, left // size, max(CHUNK_BYTES_MAX // size, 1))
            index = np.arange(done, done + n)
            rows = np.tile(template, (n, 1))
            head = rows[:, : HEADER_DTYPE.itemsize].copy().view(HEADER_DTYPE)[:, 0]
            positions = position + size * np.arange(n)
            head["body_crc"] = crcs[index % len(bodies)]
            head["queue_id"] = ids[index % width]
            head["queue_offset"] = firsts[index % width] + index // width
            head["physical_offset"] = positions
            rows[:, : HEADER_DTYPE.itemsize] = head.view(np.uint8).reshape(n, -1)
            rows[:, body_at : body_at + pool.shape[1]] = pool[index % len(bodies)]
            self._write_log(position, rows)
            self.position += n * size
            units = encode_units(
                positions, np.full(n, size, np.int64), np.full(n, tag_hash(tags), np.int64)
            )
            for turn, queue in enumerate(queues):
                chosen = units[index % width == turn]
                self._write_queue(queue, self.next_offsets.get(queue, 0), chosen.tobytes())
                self.next_offsets[queue] = self.next_offsets.get(queue, 0) + len(chosen)
            done += n

    def _room_for(self, size: int) -> int:
        """Where a record of this size goes; ends the file with a blank record if it must."""
        left = self.commit_log_bytes - self.position % self.commit_log_bytes
        if size + BlankRecord.SIZE > left:
            assert size + BlankRecord.SIZE <= self.commit_log_bytes, "no file holds this record"
            self._write_log(self.position, BlankRecord(left).encode())
            self.position += left
        return self.position

    def _write_log(self, position: int, raw: object) -> None:
        path = self.log_path(position)
        self._write(path, self.commit_log_bytes, position % self.commit_log_bytes, raw)

    def _write_queue(self, queue: QueueId, offset: int, raw: bytes) -> None:
        at = 0
        while at < len(raw):
            path, place = self._queue_place(queue, offset + at // UNIT_BYTES)
            piece = raw[at : at + self.consume_queue_bytes - place]
            self._write(path, self.consume_queue_bytes, place, piece)
            at += len(piece)

    def _queue_place(self, queue: QueueId, offset: int) -> tuple[Path, int]:
        directory = self.directory / "consumequeue" / queue.topic / str(queue.queue_id)
        place = offset * UNIT_BYTES % self.consume_queue_bytes
        return directory / local_file_name(offset * UNIT_BYTES - place), place

    def _write(self, path: Path, file_bytes: int, place: int, raw: object) -> None:
        if path not in self._made:
            path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if path not in self._made:
                os.ftruncate(descriptor, file_bytes)
                self._made.add(path)
            view = memoryview(raw).cast("B")  # pyright: ignore[reportArgumentType] - any buffer
            done = 0
            while done < len(view):
                done += os.pwrite(descriptor, view[done:], place + done)
        finally:
            os.close(descriptor)

    def _write_topics(self) -> None:
        document = {"dataVersion": {"counter": 1}, "topicConfigTable": self._topics}
        (self.directory / "config" / "topics.json").write_text(json.dumps(document))
