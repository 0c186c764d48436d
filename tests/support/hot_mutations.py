"""Mutations of a hot log's files, and what must hold when the store is opened afterwards.

The oracle: an opening that succeeds has every message, or gives an error or a log line of level
WARNING about what it lacks; and no offset that a message had is given to another one, unless that
message was not durable and the log line names its queue.
"""

import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from container.names.queue_id import QueueId
from provider.errors import StoreError
from tests.support.hot_store import appender_at, new_message, put, readable
from tieredstore.hot.log.consume_queues import FILLER
from tieredstore.hot.options import HotWriteOptions

OPTIONS = HotWriteOptions(commit_log_bytes=8192, consume_queue_bytes=400, files_open_max=4)
QUEUES = [QueueId("A", 0), QueueId("A", 1), QueueId("B", 0), QueueId("Idle", 0)]
HEAD_BYTES = 2000
"""Mutations fall into the first bytes of a sparse file as often as into any of it."""

Mutation = Callable[[Path, Random], None]


def write(root: Path, rng: Random, *, end: str, older: Path) -> None:
    """A store with a deleted topic, one that was created again, and retention; then `end` it.

    `older` becomes a copy of it from before the last third.
    """
    with appender_at(root, OPTIONS) as store:
        for number in range(150):
            topic, queue_id = rng.choice(QUEUES[:3])
            if number == 30:
                put(store, [new_message(1000, topic="Idle")])
            if number in (40, 41):
                store.delete_topics({"B"})
            if number == 60:
                store.delete_oldest(store.log.bases[:1])
            body_bytes = rng.choice([10, 100, 700])
            put(store, [new_message(number, topic=topic, queue_id=queue_id, body_bytes=body_bytes)])
            if number % 50 == 0:
                store.flush_queues()
            if number == 100:
                shutil.copytree(root, older)
        if end == "closed":
            store.close()
        elif end == "durable":
            store.flush_queues()
        else:
            store.flush()


def _at(raw: bytearray, rng: Random) -> int:
    limit = min(len(raw), HEAD_BYTES) if rng.random() < 0.5 else len(raw)
    return rng.randrange(max(limit, 1))


def _changed(change: Callable[[bytearray, Random], None]) -> Mutation:
    def mutate(path: Path, rng: Random) -> None:
        raw = bytearray(path.read_bytes())
        if raw:
            change(raw, rng)
        path.write_bytes(raw)

    return mutate


def _bit(raw: bytearray, rng: Random) -> None:
    raw[_at(raw, rng)] ^= 1 << rng.randrange(8)


def _bits(raw: bytearray, rng: Random) -> None:
    for _ in range(rng.randint(2, 20)):
        _bit(raw, rng)


def _byte(raw: bytearray, rng: Random) -> None:
    raw[_at(raw, rng)] = rng.randrange(256)


def _filled(filler: Callable[[int, Random], bytes]) -> Callable[[bytearray, Random], None]:
    def fill(raw: bytearray, rng: Random) -> None:
        at = _at(raw, rng)
        end = min(len(raw), at + rng.choice([1, 20, 100, 512, 4096]))
        raw[at:end] = filler(end - at, rng)

    return fill


def _fillers(raw: bytearray, rng: Random) -> None:
    """Write RocketMQ's fillers over whole units."""
    at = _at(raw, rng) // len(FILLER) * len(FILLER)
    count = min(rng.choice([1, 1, 5, 20]), (len(raw) - at) // len(FILLER))
    raw[at : at + count * len(FILLER)] = FILLER * count


def _inserted(raw: bytearray, rng: Random) -> None:
    at, size = _at(raw, rng), len(raw)
    raw[at:at] = rng.randbytes(rng.choice([1, 20, 100]))
    del raw[size:]


def _removed(raw: bytearray, rng: Random) -> None:
    at, size = _at(raw, rng), len(raw)
    del raw[at : at + rng.choice([1, 20, 100])]
    raw.extend(bytes(size - len(raw)))


def _doubled(raw: bytearray, rng: Random) -> None:
    at, size = _at(raw, rng), len(raw)
    length = rng.choice([20, 100, 400])
    raw[at:at] = raw[at : at + length]
    del raw[size:]


def _swapped(raw: bytearray, rng: Random) -> None:
    length = min(rng.choice([20, 100, 400]), len(raw) // 2)
    one = rng.randrange(max(len(raw) // 2 - length, 1))
    other = len(raw) // 2 + rng.randrange(max(len(raw) // 2 - length, 1))
    raw[one : one + length], raw[other : other + length] = (
        raw[other : other + length],
        raw[one : one + length],
    )


def _short(raw: bytearray, rng: Random) -> None:
    del raw[_at(raw, rng) :]


def _copied_over(path: Path, rng: Random) -> None:
    others = [other for other in path.parent.iterdir() if other.is_file() and other != path]
    if others:
        shutil.copy(rng.choice(sorted(others)), path)


MUTATIONS: dict[str, Mutation] = {
    "bit": _changed(_bit),
    "bits": _changed(_bits),
    "byte": _changed(_byte),
    "zeros": _changed(_filled(lambda size, _: bytes(size))),
    "ones": _changed(_filled(lambda size, _: b"\xff" * size)),
    "garbage": _changed(_filled(lambda size, rng: rng.randbytes(size))),
    "insert": _changed(_inserted),
    "remove": _changed(_removed),
    "dup": _changed(_doubled),
    "swap": _changed(_swapped),
    "short": _changed(_short),
    "fillers": _changed(_fillers),
    "empty": lambda path, _: os.truncate(path, 0),
    "lost": lambda path, _: path.unlink(),
    "other": _copied_over,
}


@dataclass
class Judge:
    """Stores that were written once, and copies of them that are mutated."""

    directory: Path
    seed: int
    counts: Counter[str] = field(default_factory=Counter[str])
    failures: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._logged: list[str] = []
        self._whole: dict[str, tuple[dict[QueueId, list[bytes]], dict[QueueId, int]]] = {}
        for end in ("closed", "durable", "killed"):
            root = self.directory / end
            write(root, Random(self.seed), end=end, older=self.directory / f"older {end}")
            copy = self.directory / "copy"
            shutil.copytree(root, copy)
            with appender_at(copy, OPTIONS) as store:
                self._whole[end] = readable(store)[0], dict(store.next_offsets)
            shutil.rmtree(copy)

    def judge(self, number: int, *, mutations: int) -> None:
        """Mutate a copy of a store, open it, and note what is wrong."""
        rng = Random(f"{self.seed} {number}")
        end = rng.choice(["closed", "closed", "durable", "killed"])
        copy = self.directory / "copy"
        shutil.copytree(self.directory / end, copy)
        done: list[str] = []
        for _ in range(mutations):
            files = sorted(p for p in copy.rglob("*") if p.is_file() and p.name != "lock")
            if files:
                path = rng.choice(files)
                name = rng.choice(sorted(MUTATIONS))
                MUTATIONS[name](path, rng)
                done.append(f"{name} {path.relative_to(copy)}")
        self._judge(copy, end, f"{number}: {end}: {', '.join(done)}")

    def judge_older(self, end: str, names: Sequence[str]) -> None:
        """Put files or directories of a copy of a store back from an older one, and open it.

        A copy that is refused is opened again: it stays refused.
        """
        older, copy = self.directory / f"older {end}", self.directory / "copy"
        shutil.copytree(self.directory / end, copy)
        for name in names:
            if (older / name).is_dir():
                shutil.rmtree(copy / name)
                shutil.copytree(older / name, copy / name)
            else:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(older / name, copy / name)
        said, refused = f"{end}: older {', '.join(names)}", self.counts["refused"]
        again = self.directory / "again"
        self._judge(copy, end, said, again=again)
        if self.counts["refused"] > refused:
            refused = self.counts["refused"]
            self._judge(again, end, said)
            if self.counts["refused"] == refused:
                self.failures.append(f"{said}: it was refused once alone")
        else:
            shutil.rmtree(again)

    def _judge(self, copy: Path, end: str, said: str, *, again: Path | None = None) -> None:
        """Open a store, and note what is wrong. Move it to `again`, or remove it."""
        handler = _Notes(self._logged)
        logger = logging.getLogger("tieredstore.hot")
        logger.addHandler(handler)
        self._logged.clear()
        try:
            self._open(copy, end, said)
        except StoreError:
            self.counts["refused"] += 1
        except Exception as error:  # noqa: BLE001 - a finding of its own
            self.failures.append(f"{said}: {error!r}")
        finally:
            logger.removeHandler(handler)
            shutil.rmtree(copy) if again is None else copy.rename(again)

    def _open(self, copy: Path, end: str, said: str) -> None:
        whole, ends = self._whole[end]
        with appender_at(copy, OPTIONS) as store:
            found, errors = readable(store)
            lacking = {q for q in whole if found.get(q, []) != whole[q]}
            has_word = bool(errors or self._logged)
            if lacking and not has_word:
                self.failures.append(f"{said}: {sorted(lacking)} lack messages, and no word")
            for queue, bodies in found.items():
                if not set(bodies) <= set(whole.get(queue, ())) and not has_word:
                    self.failures.append(f"{said}: {queue} has other messages")
            for queue, before in ends.items():
                offset = put(store, [new_message(1, topic=queue.topic, queue_id=queue.queue_id)])[
                    0
                ].queue_offset
                if offset < before and (end == "closed" or not self._logged):
                    self.failures.append(f"{said}: {queue} gives {offset}, not {before}")
            self.counts["opened"] += 1
            self.counts["lacking"] += bool(lacking)
            self.counts["errors"] += bool(errors)


class _Notes(logging.Handler):
    """Keeps what is logged."""

    def __init__(self, logged: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._logged = logged

    def emit(self, record: logging.LogRecord) -> None:
        self._logged.append(record.getMessage())
