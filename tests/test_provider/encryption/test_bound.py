"""Objects are bound to their name, their upload and their tier: nothing else is accepted."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provider.encryption.frames import CONTENT_BYTES, FRAME_BYTES
from provider.encryption.keys import KEYS_PREFIX, TIER_NAME, MasterKeys
from provider.encryption.store import EncryptedStore
from provider.errors import AlreadyExists, Corrupt, Denied, NotFound, OutOfRange
from provider.object_store import Buffer
from provider.ranges import ByteRange
from provider.testing.memory import MemoryStore

MASTERS = MasterKeys({"m": bytes(range(32))})
NAMES = ("entries/7", "entries/8")


class Watched(MemoryStore):
    """A storage that keeps what it was given, refused uploads too, and gives back what it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[str, bytes]] = []

    @property
    def objects(self) -> dict[str, bytearray]:
        return self._shared.objects

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        self.given.append((name, b"".join(buffers)))
        await super().create(name, buffers)

    def uploads(self, name: str) -> list[bytes]:
        return [data for one, data in self.given if one == name]

    def wraps(self) -> dict[str, bytearray]:
        """What lies below `@keys/`."""
        return {n: raw for n, raw in self.objects.items() if n.startswith(KEYS_PREFIX)}


def opened(inner: MemoryStore) -> EncryptedStore:
    """As a process that begins has it."""
    return EncryptedStore(inner, MASTERS, held="@journal/")


async def twice(inner: MemoryStore, name: str, contents: Sequence[bytes]) -> None:
    """Create one name by several owners; all but the first are refused."""
    for content in contents:
        with suppress(AlreadyExists):
            await opened(inner).create(name, [content])


async def test_frames_of_two_uploads_of_one_name_are_refused() -> None:
    inner, name = Watched(), NAMES[0]
    await twice(inner, name, [b"A" * 9000, b"B" * 9000])
    one, two = inner.uploads(name)
    for at in (0, FRAME_BYTES, 2 * FRAME_BYTES):
        inner.objects[name] = bytearray(one[:at] + two[at : at + FRAME_BYTES] + one[at + 4096 :])
        with pytest.raises(Corrupt, match="frames of several uploads"):
            await opened(inner).read(name)
    with pytest.raises(Corrupt, match="frames of several uploads"):
        await opened(inner).read_many([(name, ByteRange(4000, 8200))])
    inner.objects[name] = bytearray(one)
    assert bytes(await opened(inner).read(name)) == b"A" * 9000


async def test_an_object_of_another_tier_with_the_same_master_key_is_refused() -> None:
    ours, theirs, name = Watched(), Watched(), NAMES[0]
    await opened(ours).create(name, [b"entry of ours"])
    await opened(ours).create(NAMES[1], [b"another one of ours"])
    await opened(theirs).create(name, [b"entry of theirs"])
    running, before = opened(ours), dict(ours.objects)
    assert bytes(await running.read(name)) == b"entry of ours"
    for put in (lambda n: n != TIER_NAME, lambda _: True):  # without and with what names the tier
        ours.objects.update({n: raw for n, raw in theirs.wraps().items() if put(n)})
        for one in NAMES:
            with pytest.raises(Denied, match="data keys of several tiers lie here: take away"):
                await opened(ours).read(one)
        ours.objects[name] = theirs.objects[name]
        with pytest.raises(Denied, match="data keys of several tiers lie here: take away"):
            await opened(ours).read(name)
        with pytest.raises(Corrupt, match="a data key of another tier was put here"):
            await running.read(name)
        await running.create(f"later{len(ours.given)}", [b"under our own key"])
        assert bytes(await running.read(NAMES[1])) == b"another one of ours"
        ours.objects.update(before)
    wrap = next(n for n in theirs.wraps() if n != TIER_NAME)
    del ours.objects[wrap]
    assert bytes(await opened(ours).read(name)) == b"entry of ours"


async def test_a_process_that_runs_takes_no_data_key_of_another_tier() -> None:
    ours, theirs, name = Watched(), Watched(), NAMES[0]
    running = opened(ours)
    await running.create(name, [b"ours"])
    await opened(theirs).create(name, [b"theirs"])
    ours.objects.clear()
    ours.objects.update(theirs.objects)
    with pytest.raises(Corrupt, match="a data key of another tier was put here"):
        await running.read(name)


async def test_first_writers_at_once_agree_on_the_tier() -> None:
    class Slow(MemoryStore):
        async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
            await asyncio.sleep(0)
            await super().create(name, buffers)

    inner = Slow()
    names = [f"n{number}" for number in range(5)]
    await asyncio.gather(*(opened(inner).create(name, [b"x"]) for name in names))
    for name in names:
        assert bytes(await opened(inner).read(name)) == b"x"


async def test_a_damaged_or_newer_name_of_the_tier_is_said() -> None:
    for text, kind in ((b"{", Corrupt), (b'{"format": 1, "tier": "00"}', Corrupt),
                       (b'{"format": 2}', Denied)):  # fmt: skip
        inner = Watched()
        await inner.create(TIER_NAME, [text])
        with pytest.raises(kind, match="tier"):
            await opened(inner).create("n", [b"x"])


CONTENTS = st.integers(0, 3 * CONTENT_BYTES).map(lambda n: Random(n).randbytes(n))
FRAME_CHOICES = st.lists(st.integers(0, 1 << 16), max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_read_is_one_upload_of_that_name_to_that_tier(data: st.DataObject) -> None:
    asyncio.run(_attacked(data))


async def _attacked(data: st.DataObject) -> None:
    """Splice, swap, replay, truncate and move frames; what is accepted must be what was given."""
    ours, theirs = Watched(), Watched()
    made: dict[str, list[bytes]] = {}
    for name in NAMES:
        made[name] = data.draw(st.lists(CONTENTS, min_size=1, max_size=2))
        await twice(ours, name, made[name])
        await twice(theirs, name, [data.draw(CONTENTS)])
    uploads = [raw for inner in (ours, theirs) for name in NAMES for raw in inner.uploads(name)]
    frames = [
        raw[at : at + FRAME_BYTES]
        for raw in uploads
        for at in range(0, len(raw) - FRAME_BYTES + 1, FRAME_BYTES)
    ]
    whole = data.draw(st.booleans())
    if whole:
        raw = data.draw(st.sampled_from(uploads))
        forged = raw[
            : data.draw(st.sampled_from([len(raw), len(raw) - FRAME_BYTES, len(raw) // 2]))
        ]
    else:
        chosen = [frames[number % len(frames)] for number in data.draw(FRAME_CHOICES)]
        tail = data.draw(st.sampled_from([0, *(len(one) % FRAME_BYTES for one in uploads)]))
        forged = b"".join(chosen) + bytes(tail)
    name = data.draw(st.sampled_from(NAMES))
    ours.objects[name] = bytearray(forged)
    for key, value in theirs.wraps().items():
        if data.draw(st.booleans()):
            ours.objects[key] = value
    refusals = (Corrupt, Denied, NotFound, OutOfRange)
    with suppress(*refusals):
        assert bytes(await opened(ours).read(name)) in made[name]
    start = data.draw(st.integers(0, 2 * CONTENT_BYTES))
    wanted = ByteRange(start, start + data.draw(st.integers(1, CONTENT_BYTES + 1)))
    with suppress(*refusals):
        found = bytes((await opened(ours).read_many([(name, wanted)]))[0])
        assert found in [content[wanted.start : wanted.end] for content in made[name]]
