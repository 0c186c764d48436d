"""A tier at rest, one seeded damage to it, and everything that may then be seen of it.

Fault model: one object, or one pair, at rest. A bit flips; an object is deleted, cut short, emptied
or filled with zeros; two objects of one kind change places; an object is what it was at an earlier
moment, back in its place if it was deleted since. Whole directories of metadata are deleted, or
what they were at an earlier moment.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from container.names.queue_id import QueueId
from provider.testing.manual_clock import ManualClock
from provider.testing.memory import MemoryObjects, MemoryStore
from tests.support.fake_hot_log import FakeHotLog
from tests.support.store_harness import (
    UPKEEP_OPTIONS,
    StoreHotLog,
    StoreProcess,
    while_time_passes,
)

Objects = Mapping[str, bytes]
QUEUES = (QueueId("T", 0), QueueId("U", 0), QueueId("T", 1), QueueId("V", 2))
"""The first two have records of equal sizes, so that their files can change places unnoticed."""
ROUNDS = (3, 3, 4)
"""Rounds of each owner of the tier ..."""
ROUND_MESSAGES = 5
"""... and messages that each of them adds to each queue."""
LOST = (QUEUES[3], 15, 19)
"""A queue, and the offsets that its broker deletes before they are tiered."""
CLASSES = {"bit flip": 14, "deletion": 4, "truncation": 4, "swap": 4, "older copy": 4}
"""Shares of the kinds of damage; 30 in all."""
WEIGHTS = {
    "COMMIT_LOG": 4,
    "CONSUME_QUEUE": 3,
    "@journal": 3,
    "@snapshot": 2,
    "@manifest": 2,
    "@boundary": 1,
}
DIRECTORIES = ("@journal/", "@snapshot/", "@boundary/", "@manifest/", "@")


@dataclass(frozen=True)
class RestingTier:
    """What lay there at three moments, the last of them now; its owners are gone."""

    stages: tuple[Objects, ...]
    hot: StoreHotLog | None
    """What an owner that starts tiers from; None if none is to be started."""

    @property
    def now(self) -> Objects:
        return self.stages[-1]


@dataclass(frozen=True)
class Damage:
    """One damage, and the objects as it leaves them."""

    kind: str
    detail: str
    names: tuple[str, ...]
    """Objects that it changed."""
    objects: Objects = field(repr=False)


def golden_tier(directory: Path) -> RestingTier:
    """The tier of one broker that lies in a directory."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return RestingTier(({str(p.relative_to(directory)): p.read_bytes() for p in files},), None)


def held(store: MemoryStore) -> dict[str, bytes]:
    """Every object of a memory."""
    return {name: bytes(raw) for name, raw in store._shared.objects.items()}


def memory_of(objects: Objects) -> MemoryStore:
    """A storage that holds these objects."""
    shared = MemoryObjects()
    shared.objects = {name: bytearray(raw) for name, raw in objects.items()}
    return MemoryStore(shared)


async def resting_tier() -> RestingTier:
    """Three owners, one after the other; the last is killed, with entries behind its snapshot."""
    clock = ManualClock()
    hot = StoreHotLog(clock)
    memory = MemoryStore()
    stages: list[Objects] = []
    for number, rounds in enumerate(ROUNDS, 1):
        await _one_life(memory, hot, clock, number, rounds)
        stages.append(held(memory))
    return RestingTier(tuple(stages), hot)


async def _one_life(
    memory: MemoryStore, hot: StoreHotLog, clock: ManualClock, number: int, rounds: int
) -> None:
    """Some rounds; then a clean end with snapshots and boundary, or for the last owner none."""
    is_last = number == len(ROUNDS)
    never = {"snapshot_entries_max": 1_000, "snapshot_age_s_max": 1e6} if is_last else {}
    upkeep = replace(UPKEEP_OPTIONS, grace_s=1.0, **never)

    async def job(living: StoreProcess) -> None:
        assert living.dispatcher is not None
        for _ in range(rounds):
            for queue in QUEUES:
                add_messages(living.hot, queue, ROUND_MESSAGES)
            await living.dispatcher.drain()
        if is_last:
            living.kill()
        else:
            await clock.sleep(3.0)  # snapshots, deletions

    process = StoreProcess(memory, hot.reopened(), clock, number, upkeep=upkeep)
    await while_time_passes(clock, process.live(job), shown=process)
    if not is_last:
        await process.client.close()


def add_messages(hot: FakeHotLog, queue: QueueId, count: int) -> None:
    """Messages whose bodies differ in every queue, and are as long in each at one offset."""
    records = hot.queues[queue].records if queue in hot.queues else []
    first = len(records)
    mark = bytes([QUEUES.index(queue)])
    hot.append(queue, *(mark + offset.to_bytes(2) * 20 for offset in range(first, first + count)))
    lossy, low, end = LOST
    if queue == lossy and first == low:
        hot.delete_below(queue, end)


def kind_of(name: str) -> str:
    """What an object is, by its name."""
    return name.split("/", maxsplit=1)[0] if name.startswith("@") else name.split("/")[2]


def damage_of(tier: RestingTier, seed: int) -> Damage:
    """The damage of a seed; the same in every run."""
    rng = Random(f"damage {seed}")
    turns = [kind for kind, share in CLASSES.items() for _ in range(share)]
    if len(tier.stages) == 1:
        turns = turns[: -CLASSES["older copy"]]  # the last of the kinds
    kind = turns[seed % len(turns)]
    objects = dict(tier.now)
    match kind:
        case "bit flip":
            detail, names = _flip(objects, rng)
        case "deletion":
            detail, names = _delete(objects, rng)
        case "truncation":
            detail, names = _cut(objects, rng)
        case "swap":
            detail, names = _swap(objects, rng)
        case _:
            detail, names = _older(tier, objects, rng)
    assert objects != tier.now, (kind, detail)
    return Damage(kind, detail, tuple(names), objects)


def _pick(objects: Objects, rng: Random) -> str:
    """An object, of a kind by its weight, however many there are of it."""
    kinds = sorted({kind_of(name) for name in objects})
    (kind,) = rng.choices(kinds, [WEIGHTS.get(kind, 1) for kind in kinds])
    return rng.choice(sorted(name for name in objects if kind_of(name) == kind))


def _delete(objects: dict[str, bytes], rng: Random) -> tuple[str, list[str]]:
    if rng.random() < 0.3:
        prefix = rng.choice(DIRECTORIES)
        names = [name for name in objects if name.startswith(prefix)]
        what = f"all of {prefix} is gone"
    else:
        names, what = [_pick(objects, rng)], "deleted"
    for name in names:
        del objects[name]
    return what, names


def _flip(objects: dict[str, bytes], rng: Random) -> tuple[str, list[str]]:
    name = _pick({name: raw for name, raw in objects.items() if raw}, rng)
    raw = bytearray(objects[name])
    bit = rng.randrange(8 * len(raw))
    raw[bit // 8] ^= 1 << bit % 8
    objects[name] = bytes(raw)
    return f"bit {bit % 8} of byte {bit // 8} of {len(raw)}", [name]


def _cut(objects: dict[str, bytes], rng: Random) -> tuple[str, list[str]]:
    name = _pick({name: raw for name, raw in objects.items() if raw}, rng)
    raw = objects[name]
    size = rng.choice([0, len(raw) - 1, rng.randrange(len(raw))])
    zeros = rng.random() < 0.3
    objects[name] = raw[:size] + bytes(len(raw) - size if zeros else 0)
    if objects[name] == raw:  # it ended with zeros
        objects[name] = raw[:size]
    return f"{'zeros' if zeros else 'nothing'} behind byte {size} of {len(raw)}", [name]


def _swap(objects: dict[str, bytes], rng: Random) -> tuple[str, list[str]]:
    while True:
        one = _pick(objects, rng)
        other = rng.choice(sorted(name for name in objects if kind_of(name) == kind_of(one)))
        if objects[one] != objects[other]:
            objects[one], objects[other] = objects[other], objects[one]
            return "changed places", [one, other]


def _older(tier: RestingTier, objects: dict[str, bytes], rng: Random) -> tuple[str, list[str]]:
    if rng.random() < 0.25:
        before = rng.choice(tier.stages[:-1])
        prefix = rng.choice(DIRECTORIES)
        names = [name for name in {*before, *objects} if name.startswith(prefix)]
        changed = [name for name in names if before.get(name) != objects.get(name)]
        if changed:
            for name in changed:
                objects.pop(name, None)
            objects |= {name: before[name] for name in changed if name in before}
            return f"all of {prefix} is older", sorted(changed)
    before = rng.choice(tier.stages[:-1])
    name = _pick({name: raw for name, raw in before.items() if raw != objects.get(name)}, rng)
    was = "shorter" if name in objects else "back"
    objects[name] = before[name]
    return f"an older copy, {was}", [name]
