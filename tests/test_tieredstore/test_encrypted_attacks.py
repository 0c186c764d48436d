"""A storage that gives other bytes than were stored: no message of an encrypted tier is wrong."""

import asyncio
import base64
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import fsspec
import pytest

import tieredstore
from container.move.offload_plan import Until
from provider.clock import SystemClock
from provider.encryption.frames import FRAME_BYTES
from tests.support.fake_broker import FakeBroker
from tests.support.level import by_level
from tests.support.patience import Patience
from tieredstore.admin.offload import offload_topic
from tieredstore.config.effective import Config
from tieredstore.reader import readable_tier

TURNS = by_level(quick=1, full=1, nightly=10)
"""Attacks of each way on each object; the way's place differs."""
LIVES = 5
EACH = 60
"""Messages of a topic in one life."""
TOPICS = ("A", "B")
SMALL = {
    "tieredStoreCommitLogMaxSize": 1 << 12,
    "tieredStoreConsumeQueueMaxSize": 1000,
    "tieredStoreJournalSnapshotCount": 4,
    "tieredStoreIndexFileMaxIndexNum": 60,
    "tieredStoreIndexFileRollingIdleInterval": 1,
    "tieredStoreOffloadPath": "memory://second/t",
}
KINDS = {
    *("@journal", "@snapshot", "@manifest", "@owner", "@parts", "INDEX"),
    *("@keys", "@offload", "@keys of the second store", "@store"),
}
READ_BY_OWNERS = {"@owner", "@store"}
"""A reader does not read these."""
WAYS = ("cut", "swap", "moved", "replayed", "spliced", "longer", "bit")
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
            patience = Patience("no index file", marks=lambda: len(store))
            while life == LIVES - 1 and not any(map(is_index, store)):
                patience.look()
                await asyncio.sleep(0.02)
    settings = {**SMALL, "tieredStoreFilePath": "memory://tiers/t"}
    config = Config.load(settings={**settings, "brokerClusterName": "C", "brokerName": "b"})
    await offload_topic(config, "A", Until(), clock=SystemClock(), take_over=False)
    return {name: file.getvalue() for name, file in store.items()}


def is_index(name: str) -> bool:
    return "/INDEX/" in name


async def found() -> tuple[dict[tuple[str, int], bytes], int, bool]:
    """Every message that is read, those of a key, and whether all of it was there, it says."""
    bodies: dict[tuple[str, int], bytes] = {}
    of_key, is_whole = 0, True
    try:
        async with tieredstore.open("memory://tiers/t", settings=SMALL) as tier:
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
    if is_index(name):
        return "INDEX"
    words = [word for word in name.split("/") if word.startswith("@")]
    if words[0] == "@keys" and name.startswith("/second/"):
        return "@keys of the second store"
    return words[-1] if words[-1] == "@store" else words[0]


def attack(rng: random.Random, way: str, name: str, ours: Objects, theirs: Objects) -> Objects:
    """One object as a storage may give it that is damaged, or lies."""
    raw = ours[name]
    other = rng.choice(sorted(one for one in ours if one != name))
    alike = [one for one in sorted(ours) if kind(one) == kind(name) and one != name]
    foreign = rng.choice([one for one in sorted(theirs) if kind(one) == kind(name)])
    keys_too = {one: raw for one, raw in theirs.items() if kind(one).startswith("@keys")}
    split = FRAME_BYTES * rng.randint(0, len(raw) // FRAME_BYTES)
    place = rng.randrange(len(raw))
    changed: dict[str, Objects] = {
        "cut": {name: raw[: rng.choice([0, 1, split, place, len(raw) - 1])]},
        "swap": {name: ours[other], other: raw},
        "moved": {name: theirs[foreign], **(keys_too if rng.random() < 0.5 else {})},
        "replayed": {name: ours[rng.choice(alike or [other])]},
        "spliced": {name: raw[:split] + rng.choice([ours[other], theirs[foreign]])[split:]},
        "longer": {name: raw + raw[-FRAME_BYTES:]},
        "bit": {name: raw[:place] + bytes([raw[place] ^ 1 << rng.randrange(8)]) + raw[place + 1 :]},
    }
    return changed[way]


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.leaves_findings("journal", "checksum", "record", "unreadable", why="it is attacked")
async def test_no_attack_of_the_storage_makes_a_message_wrong(tmp_path: Path) -> None:
    theirs, ours = await begun(tmp_path, "theirs"), await begun(tmp_path, "ours")
    assert {kind(name) for name in ours} == KINDS
    truth, of_key, is_whole = await found()
    assert (len(truth), of_key, is_whole) == (LIVES * EACH * len(TOPICS), LIVES, True)
    memory, rng, refused = fsspec.filesystem("memory"), random.Random(TURNS), Counter[str]()
    attacks = [(name, way) for name in sorted(ours) for way in WAYS] * TURNS
    for name, way in attacks:
        changed = attack(rng, way, name, ours, theirs)
        memory.store.clear()
        for one, raw in {**ours, **changed}.items():
            memory.pipe_file(one, raw)
        bodies, some, says_whole = await found()
        assert bodies.items() <= truth.items(), (way, name)
        assert not says_whole or (bodies, some) == (truth, of_key), (way, name)
        refused[kind(name)] += not says_whole
    assert refused.total() > len(attacks) // 4
    assert {one for one in KINDS if not refused[one]} <= READ_BY_OWNERS
