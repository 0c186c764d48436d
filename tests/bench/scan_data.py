"""Logs to scan: four queues of messages as producers send them, in a tier of CommitLogs alone."""

from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.record.header import PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT, layout_of
from tests.support.messages import batch_of, make_record
from tieredstore.config.effective import Config
from tieredstore.offline.scan.split import LogPiece, Split, TierPlace
from tieredstore.session.places import directory_of

QUEUES = 4
PIECE_BYTES = 4 << 20
"""Of messages that are made one by one, and then repeated with other numbers."""
SEGMENT_BYTES = 128 << 20
BODY_SPREAD = 0.6
"""Sigma of the logarithms of lengths; with `BODY_MEAN` their mean is what was asked for."""
BODY_MEAN = 0.835
BODY_TIMES_MAX = 20
TAGS = ("TagA", "TagB", "order-created", "order-paid", "refund", "")
ANOTHER_KEY_SHARE = 0.2
TEXT = b'{"order":12345,"user":"abcdef","amount":19.99,"items":["x","y"]}'
UNIQ_BEGIN, UNIQ_DIGITS, UNIQ_FIXED = b"\x02UNIQ_KEY\x01", 32, 24
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def config_of(root: Path) -> Config:
    """The configuration of a tier of that data."""
    named = {"brokerClusterName": "C", "brokerName": "b"}
    return Config.load(settings={"tieredStoreFilePath": root, **named})


def write_logs(  # noqa: PLR0917 - the rest is for one caller
    root: Path,
    body_bytes: int,
    size: int,
    short_keys: int = 0,
    queues: int = QUEUES,
    segment_bytes: int = SEGMENT_BYTES,
) -> int:
    """CommitLog files of some `size` bytes in all queues together; returns how many messages.

    With `short_keys` each message has so many of a few letters, in place of one or two long ones.
    """
    broker = Path(str(directory_of(config_of(root))))
    named = [QueueId(f"B{body_bytes}", number) for number in range(queues)]
    logs = [_Log(broker, queue, body_bytes, short_keys) for queue in named]
    return sum(log.write(size // queues, segment_bytes) for log in logs)


def remove_made(root: Path) -> None:
    """Leave nothing of a tier of that data but its CommitLog files, as `write_logs` made it."""
    broker = Path(str(directory_of(config_of(root))))
    for path in sorted(broker.rglob("*"), reverse=True):
        if path.is_dir():
            with suppress(OSError):  # what still holds a CommitLog file
                path.rmdir()
        elif path.parent.name != SegmentType.COMMIT_LOG.name:
            path.unlink()


class _Log:
    """Writes the log of one queue: some MiB of messages, again and again."""

    def __init__(self, broker: Path, queue: QueueId, body_bytes: int, short_keys: int) -> None:
        self._broker, self._queue = broker, queue
        rng = Random(queue.queue_id)
        records: list[bytes] = []
        held = 0
        while held < PIECE_BYTES:
            records.append(_record(queue, len(records), body_bytes, short_keys, rng))
            held += len(records[-1])
        self._batch = batch_of(records)
        joined = self._batch.data.tobytes()
        ends = (self._batch.starts + self._batch.sizes).tolist()
        found = [joined.rindex(UNIQ_BEGIN, 0, end) for end in ends]
        self._digits = np.array(found, np.int64) + len(UNIQ_BEGIN) + UNIQ_FIXED

    def write(self, size: int, segment_bytes: int) -> int:
        """Write segments of at most so many bytes until there are `size`; how many messages."""
        batch, at, offset = self._batch, 0, 0
        while at < size:
            base = at
            path = self._broker / segment_name(self._queue, SegmentType.COMMIT_LOG, base)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                while at < size and at - base + len(batch.data) <= segment_bytes:
                    self._renumber(np.arange(offset, offset + len(batch.starts)), at)
                    file.write(batch.data.data)
                    at, offset = at + len(batch.data), offset + len(batch.starts)
        return offset

    def _renumber(self, numbers: NDArray[np.int64], at: int) -> None:
        data, starts = self._batch.data, self._batch.starts
        places = np.ndarray((len(data) - 7,), ">i8", data, strides=(1,))
        places[starts + QUEUE_OFFSET_AT] = numbers
        places[starts + PHYSICAL_OFFSET_AT] = starts + at
        places[starts + layout_of(0).store_timestamp] = 1_760_000_000_000 + numbers
        for digit in range(UNIQ_DIGITS - UNIQ_FIXED):
            data[self._digits + digit] = _HEX[numbers >> 4 * digit & 15]


def _record(queue: QueueId, offset: int, body_bytes: int, short_keys: int, rng: Random) -> bytes:
    length = int(rng.lognormvariate(0, BODY_SPREAD) * body_bytes * BODY_MEAN)
    length = max(1, min(length, body_bytes * BODY_TIMES_MAX))
    text = TEXT * (length // len(TEXT) + 1)
    body = text[:length] if rng.random() < 1 / 2 else rng.randbytes(length)
    keys = f"order-{rng.getrandbits(34)}"
    if rng.random() < ANOTHER_KEY_SHARE:
        keys += f" user-{rng.getrandbits(20)}"
    if short_keys:
        keys = " ".join(f"{rng.getrandbits(14):x}" for _ in range(short_keys))
    tag = rng.choice(TAGS)
    properties = {
        "KEYS": keys,
        "UNIQ_KEY": f"{rng.getrandbits(128):032X}",
        "CLUSTER": "DefaultCluster",
        "WAIT": "true",
        **({"TAGS": tag} if tag else {}),
    }
    return make_record(queue.topic, queue.queue_id, offset, body, properties=properties)


def splits_of(root: Path, split_bytes: int) -> list[Split]:
    """The splits of all queues; all but the first of a segment find their first record."""
    broker = Path(str(directory_of(config_of(root))))
    made: list[Split] = []
    for path in sorted(broker.glob("*/*/COMMIT_LOG/*")):
        name = path.relative_to(broker).as_posix()
        topic, number = path.parts[-4:-2]
        base, size = int(path.name[-20:]), path.stat().st_size
        pieces = (LogPiece(base, size, name, 0),)
        for start in range(base, base + size, split_bytes):
            anchor = start if start == base else None
            end = min(start + split_bytes, base + size)
            queue, place = QueueId(topic, int(number)), TierPlace(str(broker))
            made.append(Split(queue, start, end, anchor, base + size, pieces, place=place))
    return made
