"""A tier of random messages of every kind, from a seed: as many as are asked for.

Bodies of 0 to 40 KiB, mostly short; keys and tags in any script, and properties that are none;
hosts of both kinds, records of both versions, some with a checksum of the whole record; queues that
begin anywhere, offsets that are missing, segments and index files that a few messages fill.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.queue.commit_plan import CommitPlan
from container.record.batch import MessageBatch, rewrite_positions
from container.record.header import INNER_BATCH, MULTI_TAGS, TRANSACTION_COMMIT, Coda
from container.record.message import StoredMessage
from container.record.properties import decode_properties, encode_properties, tag_hash
from container.record.unit import UNIT_DTYPE
from container.tier import Tier
from provider.clock import SystemClock
from provider.ranges import QueueOffset
from tests.support.messages import with_record_crc
from tieredstore.config.effective import Config
from tieredstore.session.owner import open_owner

KIB = 1 << 10
TOPICS = (
    "Orders",
    "Payments-of-all-shops",
    "t",
    "Aufträge",
    "注文",
    "ordres-😀",
    "a" * 127,
    "v2-" + "b" * 125,
    "v2-" + "漢字" * 21,
)
"""The last two are too long for a record of version 1, and one is as long as fits into it."""
FIRST_MS = 1_700_000_000_000
WORDS = ("Aa", "BB", "AaAa", "BBBB", "order", "ключ", "キー", "😀", "é", "k" * 300, "#", "x\x00y")
"""Parts of keys: some have one hash, some are long, some have characters beyond 16 bits."""
TAGS = ("", "TagA", "Tag-Ä", "標識", "😀😀", "TagA || TagB")
ROUND_QUEUES_MAX = 12


@dataclass
class Written:
    """What was put into a tier."""

    messages: int = 0
    firsts: dict[QueueId, int] = field(default_factory=dict[QueueId, int])
    ends: dict[QueueId, int] = field(default_factory=dict[QueueId, int])
    gaps: dict[QueueId, list[tuple[int, int]]] = field(
        default_factory=dict[QueueId, list[tuple[int, int]]]
    )


class RandomMessages:
    """Messages of some queues, some queues much oftener than others."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.queues = [QueueId(topic, number) for topic in TOPICS for number in self._numbers()]
        self.weights = [rng.paretovariate(0.9) for _ in self.queues]
        self._noise = rng.randbytes(80 * KIB)
        self._text = ("".join(WORDS) * 2000).encode()[: 80 * KIB]
        self._now_ms = FIRST_MS

    def _numbers(self) -> Iterator[int]:
        yield from range(self.rng.randint(1, 4))
        if self.rng.random() < 1 / 4:
            yield 2**31 - 1

    def batch(self, queue: QueueId, first: int, count: int) -> MessageBatch:
        """The next messages of a queue."""
        records: list[bytes] = []
        tags: list[int] = []
        stamps: list[int] = []
        for offset in range(first, first + count):
            properties = self._properties()
            stamp = self._stamp()
            tag = decode_properties(properties).get("TAGS", "")
            records.append(self._record(queue, offset, properties, stamp))
            tags.append(tag_hash(tag))
            stamps.append(stamp)
        sizes = np.array([len(raw) for raw in records], np.int64)
        return MessageBatch(
            QueueOffset(first),
            np.frombuffer(bytearray(b"".join(records)), np.uint8),
            np.cumsum(sizes) - sizes,
            sizes,
            np.array(tags, np.int64),
            np.array(stamps, np.int64),
        )

    def _record(self, queue: QueueId, offset: int, properties: bytes, stamp: int) -> bytes:
        rng = self.rng
        flags = (0, 0, 0, MULTI_TAGS, TRANSACTION_COMMIT, INNER_BATCH)
        message = StoredMessage.compose(
            queue.topic,
            queue.queue_id,
            offset,
            body=self._body(),
            properties=properties,
            flag=rng.getrandbits(32) - (1 << 31) if rng.random() < 1 / 8 else 0,
            sys_flag=rng.choice(flags),
            born_timestamp=stamp - rng.randint(-5, 50),
            born_host=self._host(),
            store_timestamp=stamp,
            store_host=self._host(),
            reconsume_times=rng.choice((0, 0, 0, 16)),
            prepared_transaction_offset=rng.choice((0, 0, 1 << 40)),
        )
        # Whoever renews checksums takes a last property of that name for one: it must be one.
        return with_record_crc(message) if rng.random() < 1 / 16 else message.encode()

    def _body(self) -> bytes:
        rng = self.rng
        kind = rng.random()
        if kind < 1 / 20:
            return b""
        if kind < 1 / 500 + 1 / 20:
            size = rng.randint(0, 40 * KIB)
        elif kind < 1 / 50 + 1 / 20:
            size = rng.randint(0, 10 * KIB)
        else:
            size = min(int(rng.lognormvariate(4, 1.3)), 10 * KIB)
        source = self._noise if rng.random() < 1 / 2 else self._text
        at = rng.randrange(len(source) - size)
        return source[at : at + size]

    def _properties(self) -> bytes:
        rng = self.rng
        kind = rng.random()
        if kind < 1 / 50:
            return b""
        if kind < 1 / 25:
            return rng.randbytes(rng.randrange(60))
        pairs: dict[str, str] = {"WAIT": "true"} if rng.random() < 1 / 2 else {}
        keys = [self._key() for _ in range(rng.choice((0, 1, 1, 1, 2, 5)))]
        if keys:
            pairs["KEYS"] = rng.choice((" ", " ", "  ")).join(keys)
        if rng.random() < 3 / 4:
            pairs["UNIQ_KEY"] = f"{rng.getrandbits(128):032X}"
        if tag := rng.choice(TAGS):
            pairs["TAGS"] = tag
        if rng.random() < 1 / 8:
            pairs[self._key()] = self._key()
        return encode_properties(pairs)

    def _key(self) -> str:
        rng = self.rng
        word = rng.choice(WORDS)
        return f"{word}{rng.getrandbits(rng.choice((4, 34)))}" if rng.random() < 7 / 8 else word

    def _host(self) -> tuple[str, int]:
        rng = self.rng
        port = rng.randrange(1 << 16)
        number = rng.randrange(64)
        if rng.random() < 1 / 2:
            return str(IPv4Address(0x0A000000 + number)), port
        return str(IPv6Address((0x20010DB8 << 96) + number)), port

    def _stamp(self) -> int:
        """Mostly a little later than the one before; clocks are set, too."""
        rng = self.rng
        kind = rng.random()
        if kind < 1 / 10_000:
            self._now_ms += rng.randint(-3_600_000, 3_600_000)
        self._now_ms += rng.choice((0, 0, 1, 7))
        return self._now_ms + (rng.randint(-2_000, 2_000) if kind > 1 - 1 / 100 else 0)


def sizes_for(messages: int) -> dict[str, str]:
    """Keys that make several segments of each long queue, and several index files."""
    keys_max = max(4_000, messages // 10)
    return {
        "tieredStoreCommitLogMaxSize": str(max(256 * KIB, 12 * messages)),
        "tieredStoreConsumeQueueMaxSize": str(20 * max(500, messages // 100)),
        "tieredStoreExtentMaxSize": str(max(128 * KIB, min(6 * messages, 4096 * KIB))),
        "tieredStoreIndexFileMaxIndexNum": str(keys_max),
        "tieredStoreIndexFileMergedMaxIndexNum": str(2 * keys_max),
    }


async def write_random_tier(config: Config, messages: int, seed: int) -> Written:
    """Tier that many messages in rounds of several queues; ends as an owner ends."""
    made = RandomMessages(seed)
    written = Written()
    async with owned(config) as tier:
        while written.messages < messages:
            chosen = set(made.rng.choices(made.queues, made.weights, k=ROUND_QUEUES_MAX))
            await _round(tier, made, sorted(chosen), written, messages)
    return written


async def _round(
    tier: Tier, made: RandomMessages, queues: Sequence[QueueId], written: Written, wanted: int
) -> None:
    """Commit some messages of these queues, behind offsets that are lost, now and then."""
    rng = made.rng
    plans: list[CommitPlan] = []
    for queue in queues:
        count = min(1 + int(rng.lognormvariate(4, 1.2)), wanted - written.messages)
        if not count:
            break
        if queue not in written.ends:
            written.firsts[queue] = written.ends[queue] = rng.choice((0, 0, 17, 1 << 40))
        elif rng.random() < 1 / 20:
            start = written.ends[queue]
            end = written.ends[queue] = start + rng.choice((1, 3, 1000))
            written.gaps.setdefault(queue, []).append((start, end))
            await tier.record_gap(queue, QueueOffset(start), QueueOffset(end), "lost by the test")
        first = written.ends[queue]
        plans.append(tier.plan_commit(queue, made.batch(queue, first, count)))
        written.ends[queue] = first + count
        written.messages += count
    await tier.commit(plans)
    await tier.complete_index()  # a busy machine would build fewer and larger files


@asynccontextmanager
async def owned(config: Config) -> AsyncGenerator[Tier]:
    """The tier with its owner, which ends as owners end."""
    async with open_owner(config, clock=SystemClock()) as tier, asyncio.TaskGroup() as group:
        worker = group.create_task(tier.run())
        yield tier
        await tier.close()
        worker.cancel()


def with_codas(broker: Path, made: Path) -> dict[str, bytes]:
    """Copy CommitLog files as old stores of RocketMQ wrote them: a coda behind each but the last.

    So all behind a coda lies 16 bytes further on. Returns what the ConsumeQueue files must be then,
    by name.
    """
    wanted: dict[str, bytes] = {}
    for directory in sorted(broker.glob("*/*/COMMIT_LOG")):
        queue = QueueId(directory.parts[-3], int(directory.parts[-2]))
        logs = sorted(directory.iterdir(), key=_base)
        bases = np.array([_base(path) for path in logs], np.int64)
        units: list[NDArray[np.void]] = []
        for path in sorted((directory.parent / "CONSUME_QUEUE").iterdir(), key=_base):
            units.append(np.fromfile(path, UNIT_DTYPE))
            moved = units[-1].copy()
            codas = np.searchsorted(bases, moved["position"], side="right") - 1
            moved["position"] += Coda.SIZE * codas
            wanted[path.relative_to(broker).as_posix()] = moved.tobytes()
        positions = np.concatenate([part["position"].astype(np.int64) for part in units])
        sizes = np.concatenate([part["size"].astype(np.int64) for part in units])
        for number, (path, base) in enumerate(zip(logs, bases.tolist(), strict=True)):
            data = np.fromfile(path, np.uint8)
            mine = (positions >= base) & (positions < base + len(data))
            starts, moved_base = positions[mine] - base, base + number * Coda.SIZE
            rewrite_positions(data, starts, sizes[mine], starts + moved_base)
            name = segment_name(queue, SegmentType.COMMIT_LOG, moved_base)
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            coda = Coda(FIRST_MS).encode() if number < len(logs) - 1 else b""
            (made / name).write_bytes(data.tobytes() + coda)
    return wanted


def _base(path: Path) -> int:
    """Position of a segment's first byte in its flat file: the last 20 digits of its name."""
    return int(path.name[-20:])
