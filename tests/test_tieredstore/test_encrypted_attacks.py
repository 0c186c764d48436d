"""A storage that gives other bytes than were stored: no message of an encrypted tier is wrong."""

import base64
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import fsspec
import pytest

import tieredstore
from provider.encryption.frames import FRAME_BYTES
from tests.support.fake_broker import FakeBroker
from tests.support.level import by_level
from tieredstore.reader import readable_tier

ATTACKS = by_level(quick=60, full=300, nightly=3_000)
LIVES = 5
EACH = 40
"""Messages of a topic in one life."""
TOPICS = ("A", "B")
SMALL = {
    "tieredStoreCommitLogMaxSize": 1 << 13,
    "tieredStoreConsumeQueueMaxSize": 1000,
    "tieredStoreJournalSnapshotCount": 4,
    "tieredStoreIndexFileMaxIndexNum": 60,
    "tieredStoreIndexFileMaxHashSlotNum": 30,
}
Objects = Mapping[str, bytes]


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    master = f"a:{base64.b64encode(bytes([1]) * 32).decode()}"
    monkeypatch.setenv("TIEREDSTORE_OBJECT_STORE_ENCRYPTION_KEYS", master)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(readable_tier, "SETTLE_S", 0.0)  # no owner publishes what it finds
    yield
    fsspec.filesystem("memory").store.clear()


async def begun(tmp_path: Path, name: str) -> Objects:
    """A tier of some lives in an empty storage; its objects. `name` is in all bodies."""
    store = fsspec.filesystem("memory").store
    store.clear()
    broker = FakeBroker(tmp_path / name)
    for life in range(LIVES):
        for number in range(EACH):
            for topic in TOPICS:
                body = f"{name} {life} {number} ".encode() + b"x" * 150
                broker.put(topic, 0, body, keys=f"k{number}")
        async with tieredstore.follow(
            broker.directory, "memory://tiers/t", cluster="C", broker="b", settings=SMALL
        ) as follower:
            await follower.drain()
    return {name: file.getvalue() for name, file in store.items()}


async def found() -> tuple[dict[tuple[str, int], bytes], int, bool]:
    """Every message that is read, those of a key, and whether all of it was there, it says."""
    bodies: dict[tuple[str, int], bytes] = {}
    of_key, is_whole = 0, True
    try:
        async with tieredstore.open("memory://tiers/t") as tier:
            for topic in TOPICS:
                try:
                    async for one in tier.messages(topic, 0):
                        bodies[topic, one.offset] = bytes(one.body)
                except tieredstore.StoreError:
                    is_whole = False
            answer = await tier.query_message("A", "k7")
            of_key, is_whole = len(answer.messages), is_whole and answer.is_complete
    except tieredstore.StoreError:
        is_whole = False
    return bodies, of_key, is_whole


def kind(name: str) -> str:
    return next((word for word in name.split("/") if word.startswith("@")), "")


def attack(rng: random.Random, ours: Objects, theirs: Objects) -> tuple[str, Objects]:
    """One object as a storage may give it that is damaged, or lies."""
    name, other = rng.sample(sorted(ours), 2)
    raw, way = ours[name], rng.choice(["cut", "swap", "moved", "spliced", "longer", "bit"])
    alike = [one for one in sorted(theirs) if kind(one) == kind(name)]
    foreign = rng.choice(alike)
    keys_too = {one: raw for one, raw in theirs.items() if kind(one) == "@keys"}
    split = FRAME_BYTES * rng.randint(0, len(raw) // FRAME_BYTES)
    place = rng.randrange(len(raw))
    changed: dict[str, Objects] = {
        "cut": {name: raw[: rng.choice([0, 1, split, place, len(raw) - 1])]},
        "swap": {name: ours[other], other: raw},
        "moved": {name: theirs[foreign], **(keys_too if rng.random() < 0.5 else {})},
        "spliced": {name: raw[:split] + rng.choice([ours[other], theirs[foreign]])[split:]},
        "longer": {name: raw + raw[-FRAME_BYTES:]},
        "bit": {name: raw[:place] + bytes([raw[place] ^ 1 << rng.randrange(8)]) + raw[place + 1 :]},
    }
    return f"{way} {name}", changed[way]


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.leaves_findings("journal", "checksum", "record", "unreadable", why="it is attacked")
async def test_no_attack_of_the_storage_makes_a_message_wrong(tmp_path: Path) -> None:
    theirs, ours = await begun(tmp_path, "theirs"), await begun(tmp_path, "ours")
    assert {kind(name) for name in ours} >= {"@journal", "@snapshot", "@keys", "@parts"}
    truth, of_key, is_whole = await found()
    assert (len(truth), of_key, is_whole) == (LIVES * EACH * len(TOPICS), LIVES, True)
    memory, rng, refused = fsspec.filesystem("memory"), random.Random(ATTACKS), 0
    for _ in range(ATTACKS):
        what, changed = attack(rng, ours, theirs)
        memory.store.clear()
        for name, raw in {**ours, **changed}.items():
            memory.pipe_file(name, raw)
        bodies, some, says_whole = await found()
        assert bodies.items() <= truth.items(), what
        assert not says_whole or (bodies, some) == (truth, of_key), what
        refused += not says_whole
    assert refused > ATTACKS // 4
