"""Objects of the older form are read, then moved to the newer one, and refused from then on."""

import base64
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from provider.encryption.frames import FRAME_BYTES, KEY_ID_BYTES
from provider.encryption.keys import MasterKeys, wraps_in
from provider.encryption.store import EncryptedStore
from provider.errors import Corrupt, Unavailable
from provider.object_store import Buffer
from provider.ranges import ByteRange
from provider.testing.faulty import Crashed, Fault, FaultyObjectStore
from provider.testing.memory import MemoryStore
from tests.test_provider.encryption.test_vectors import CONTENT, FORMS
from tieredstore.admin.rewrap import Moved, move_older

OLDER: dict[str, Any] = FORMS["older"]
MASTERS = MasterKeys.parse(OLDER["master"])
NAMES = sorted(OLDER["objects"])


def raw_of(name: str) -> bytes:
    return base64.b64decode("".join(OLDER["objects"][name]["object"]))


def content_of(name: str) -> bytes:
    return CONTENT[: OLDER["objects"][name]["content_bytes"]]


async def older_storage() -> MemoryStore:
    """A storage that an older program has written."""
    inner = MemoryStore()
    await inner.create(OLDER["wrap_name"], [json.dumps(OLDER["wrap"]).encode()])
    for name in NAMES:
        await inner.create(name, [raw_of(name)])
    return inner


def opened(inner: Any) -> EncryptedStore:
    return EncryptedStore(inner, MASTERS, held="parts/")


async def assert_moved(inner: MemoryStore) -> None:
    for name in NAMES:
        assert bytes(await opened(inner).read(name)) == content_of(name)
        now = bytes(await inner.read(name))
        assert now[:KEY_ID_BYTES] != raw_of(name)[:KEY_ID_BYTES]
        assert len(now) == len(raw_of(name))
    assert OLDER["wrap_name"].split("/")[1] not in await wraps_in(inner)


async def test_what_is_new_is_bound_and_what_is_older_is_read() -> None:
    inner = await older_storage()
    store = opened(inner)
    await store.create("new", [b"new"])
    assert bytes(await store.read("new")) == b"new"
    assert bytes(await inner.read("new"))[:KEY_ID_BYTES] not in opened(inner).ring.older
    for name in NAMES:
        assert bytes(await opened(inner).read(name)) == content_of(name)
    spliced = raw_of(NAMES[0])[:FRAME_BYTES] + bytes(await inner.read("new"))[FRAME_BYTES:]
    await inner.replace("new", [spliced])
    with pytest.raises(Corrupt):
        await opened(inner).read("new")


async def test_a_moved_storage_refuses_the_older_form_and_its_keys() -> None:
    inner = await older_storage()
    running = opened(inner)
    assert bytes(await running.read(NAMES[0])) == content_of(NAMES[0])
    size = sum(len(content_of(name)) for name in NAMES)
    planned = await move_older(opened(inner), dry_run=True)
    assert planned == Moved(len(NAMES), size)
    assert bytes(await inner.read(NAMES[0])) == raw_of(NAMES[0])
    assert await move_older(opened(inner)) == planned
    await assert_moved(inner)
    assert bytes(await running.read(NAMES[0])) == content_of(NAMES[0])
    assert await move_older(opened(inner)) == Moved()
    # the storage puts an older object back, and its data key with it
    await inner.replace(NAMES[0], [raw_of(NAMES[0])])
    with pytest.raises(Corrupt, match="is lost"):
        await opened(inner).read(NAMES[0])
    await inner.create(OLDER["wrap_name"], [json.dumps(OLDER["wrap"]).encode()])
    for read in (opened(inner).read, lambda name: running.read(name, ByteRange(0, 1))):
        with pytest.raises(Corrupt, match="in the older form, which this tier has left"):
            await read(NAMES[0])
    assert bytes(await opened(inner).read(NAMES[1])) == content_of(NAMES[1])


async def test_a_fresh_storage_refuses_the_older_form() -> None:
    inner, older = MemoryStore(), await older_storage()
    await opened(inner).create("new", [b"new"])
    for name in (NAMES[0], OLDER["wrap_name"]):
        await inner.create(name, [bytes(await older.read(name))])
    with pytest.raises(Corrupt, match="in the older form, which this tier has left"):
        await opened(inner).read(NAMES[0])
    assert bytes(await opened(inner).read("new")) == b"new"


@pytest.mark.parametrize("kind", ["crash_before", "crash_after", "lost_reply", "refused"])
async def test_a_move_that_dies_at_any_request_loses_nothing_and_goes_on(kind: str) -> None:
    call = 1
    while True:
        inner = await older_storage()
        faults = [Fault(kind, calls=(call,))]  # type: ignore[arg-type]
        dying = FaultyObjectStore(inner, faults=faults)
        with suppress(Crashed, Unavailable):
            await move_older(opened(dying))
        for name in NAMES:
            assert bytes(await opened(inner).read(name)) == content_of(name)
        assert (await move_older(opened(inner))).failures == []
        await assert_moved(inner)
        if not dying.struck:
            break
        call += 1
    assert call > 15


async def test_objects_of_others_are_left_and_keep_the_older_form_readable() -> None:
    inner = await older_storage()
    moved = await move_older(opened(inner), NAMES[0])
    assert (moved.objects, moved.left) == (1, len(NAMES) - 1)
    for name in NAMES:
        assert bytes(await opened(inner).read(name)) == content_of(name)
    assert (await move_older(opened(inner), NAMES[1])).left == 0
    await assert_moved(inner)


async def test_a_damaged_object_stays_and_stops_no_other() -> None:
    inner = await older_storage()
    damaged = bytearray(raw_of(NAMES[0]))
    damaged[100] ^= 1
    await inner.replace(NAMES[0], [damaged])
    moved = await move_older(opened(inner))
    assert [error.path for error in moved.failures] == [NAMES[0]]
    assert bytes(await inner.read(NAMES[0])) == damaged
    assert bytes(await opened(inner).read(NAMES[1])) == content_of(NAMES[1])
    await inner.replace(NAMES[0], [raw_of(NAMES[0])])
    assert (await move_older(opened(inner))).objects == 1
    await assert_moved(inner)


@pytest.mark.parametrize("wrong", [1, 2])
async def test_what_is_stored_otherwise_is_stored_again_or_said(wrong: int) -> None:
    class Careless(MemoryStore):
        left = wrong

        async def replace(self, name: str, buffers: Sequence[Buffer]) -> None:
            if self.left:
                self.left -= 1
                buffers = [b"".join(buffers)[::-1]]
            await super().replace(name, buffers)

    inner = Careless((await older_storage())._shared)
    one = NAMES[0]
    await inner.delete(NAMES[1:])
    moved = await move_older(opened(inner))
    if wrong == 1:
        assert (moved.objects, moved.failures) == (1, [])
        assert bytes(await opened(inner).read(one)) == content_of(one)
    else:
        (failure,) = moved.failures
        assert "returns other bytes than were stored" in failure.reason
        assert opened(inner).ring.reads_older
