"""Master keys and data keys: how they are written, found, and put under another master key."""

import base64
from random import Random

import pytest

from provider.encryption.keys import KEYS_PREFIX, MasterKeys, Rewrapped, rewrap, wraps_in
from provider.encryption.store import EncryptedStore, RefuseEncryptedStore
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, Unavailable
from provider.object_store import ObjectEntry, ObjectStore
from provider.ranges import ByteRange
from provider.testing.faulty import Crashed, Fault, FaultyObjectStore
from provider.testing.memory import MemoryStore

HELD = "@journal/"


def key(number: int) -> bytes:
    return bytes([number]) * 32


def masters(**keys: int) -> MasterKeys:
    """Names with the number that fills their key, the first one current."""
    return MasterKeys({name: key(number) for name, number in keys.items()})


def encrypted(inner: ObjectStore, keys: MasterKeys) -> EncryptedStore:
    return EncryptedStore(inner, keys, held=HELD)


async def wrap_name(inner: ObjectStore) -> str:
    """Name of the wrap of the only data key."""
    ((key_id, (master,)),) = (await wraps_in(inner)).items()
    return f"{KEYS_PREFIX}{key_id}/{master}"


def test_master_keys_are_read_from_text_that_is_never_repeated() -> None:
    good = base64.b64encode(key(1)).decode()
    parsed = MasterKeys.parse(f" a:{good} , b.2:{base64.b64encode(key(2)).decode()},")
    assert parsed.current == "a"
    assert parsed.keys == {"a": key(1), "b.2": key(2)}
    assert good not in repr(parsed)
    for text in (
        "",
        " , ",
        good,
        f":{good}",
        f".:{good}",
        f"..:{good}",
        "a:",
        "a:secret",
        f"a:{good[:-4]}",
        f"a/b:{good}",
        f"a:\u00e9{good}",
    ):
        with pytest.raises(ValueError, match="master key") as failed:
            MasterKeys.parse(text)
        assert good[:8] not in str(failed.value)
        assert "secret" not in str(failed.value)
    with pytest.raises(ValueError, match="master key 2 is not"):
        MasterKeys.parse(f"a:{good},a:{good}")


async def test_nothing_of_an_object_but_its_name_and_length_can_be_read_in_the_storage() -> None:
    inner = MemoryStore()
    store = encrypted(inner, masters(a=1))
    body = b"a secret sentence " * 1000
    await store.create("parts/1", [body])
    await store.create("parts/2", [body])
    one, two = bytes(await inner.read("parts/1")), bytes(await inner.read("parts/2"))
    assert b"secret" not in one + two
    common = sum(a == b for a, b in zip(one, two, strict=True))
    assert common < len(one) * 0.25  # ids of keys, padding, and chance
    held = [bytes(await inner.read(entry.name)) for entry in await inner.list(KEYS_PREFIX)]
    assert len(held) == 2  # the data key, and the tier that it is bound to
    assert key(1) not in b"".join(held)


async def test_an_object_under_another_name_is_refused() -> None:
    inner = MemoryStore()
    store = encrypted(inner, masters(a=1))
    await store.create("parts/1", [b"abc"])
    await inner.create("parts/2", [bytes(await inner.read("parts/1"))])
    with pytest.raises(Corrupt, match="changed, moved, or sealed"):
        await store.read("parts/2")
    assert bytes(await store.read("parts/1")) == b"abc"


async def test_requests_are_those_of_the_storage_and_two_at_first() -> None:
    inner = FaultyObjectStore(MemoryStore())
    await encrypted(inner, masters(a=1)).create("n", [bytes(100_000)])
    inner.calls.clear()
    store = encrypted(inner, masters(a=1))
    for _ in range(3):
        await store.read("n", ByteRange(99_990, 100_000))
        await store.read_many([("n", ByteRange(0, 1)), ("n", ByteRange(5, 60_000))])
    assert inner.calls == {"read_many": 6, "list": 1, "read": 1}
    with pytest.raises(OutOfRange):
        await store.read("n", ByteRange(99_999, 100_001))
    with pytest.raises(NotFound):
        await store.read("no", ByteRange(0, 1))
    assert inner.calls == {"read_many": 8, "list": 1, "read": 1}


@pytest.mark.parametrize("size", [1, 300, 4096, 5000, 9000, 3 * 4096 + 4061])
@pytest.mark.parametrize("verb", ["read", "range", "size", "list", "delete", "create"])
async def test_a_plain_storage_with_keys_is_refused_on_every_path(size: int, verb: str) -> None:
    inner = MemoryStore()
    for number in range(3):
        body = Random(number).randbytes(size)
        await RefuseEncryptedStore(inner).create(f"{HELD}{number}", [body[:-1] + b"x"])
    store = encrypted(inner, masters(a=1))
    calls = {
        "read": lambda: store.read(f"{HELD}1"),
        "range": lambda: store.read_many([(f"{HELD}1", ByteRange(0, 1))]),
        "size": lambda: store.size(f"{HELD}1"),
        "list": lambda: store.list(HELD),
        "delete": lambda: store.delete([f"{HELD}1"]),
        "create": lambda: store.create("n", [b"x"]),
    }
    for _ in range(2):
        if size == 4096:  # its length and one frame say nothing
            with pytest.raises(Denied):
                await calls[verb]()
            continue
        with pytest.raises(Denied, match="it is not encrypted: take the keys away"):
            await calls[verb]()
    assert not await wraps_in(inner)
    assert len(await inner.list(HELD)) == 3


@pytest.mark.parametrize("size", [0, 1, 300, 5000, 9000])
async def test_lost_data_keys_are_not_taken_for_a_plain_storage(size: int) -> None:
    inner = MemoryStore()
    store = encrypted(inner, masters(a=1))
    for number in range(7):
        await store.create(f"{HELD}{number}", [bytes(size)])
    await inner.create(f"{HELD}z", [b"a foreign object"])
    await inner.delete([entry.name for entry in await inner.list(KEYS_PREFIX)])
    again = encrypted(inner, masters(a=1))
    for call in (lambda: again.list(HELD), lambda: again.read(f"{HELD}1")):
        with pytest.raises(Denied, match="its data keys are gone: restore them"):
            await call()
    with pytest.raises(Denied, match="its data keys are gone"):
        await again.create("n", [b"x"])
    assert not await wraps_in(inner)


async def test_one_lost_data_key_is_named() -> None:
    inner = MemoryStore()
    await encrypted(inner, masters(a=1)).create("n", [b"x"])
    lost = await wrap_name(inner)
    await encrypted(inner, masters(b=2, a=1)).create("m", [b"y"])
    await inner.delete([lost])
    key_id = lost.split("/")[1]
    with pytest.raises(Corrupt, match=f"its data key {key_id} is lost"):
        await encrypted(inner, masters(b=2, a=1)).read("n")


async def test_a_plain_process_looks_again_before_its_first_object() -> None:
    inner = MemoryStore()
    plain = RefuseEncryptedStore(inner)
    assert await plain.list(HELD) == []
    await encrypted(inner, masters(b=2)).create(f"{HELD}b/x", [b"of b"])
    with pytest.raises(Denied, match="it is encrypted: give its master key b"):
        await plain.create(f"{HELD}a/y", [b"in clear"])
    assert [entry.name for entry in await inner.list(HELD)] == [f"{HELD}b/x"]


@pytest.mark.parametrize("rotten", [b"", b"{}", b"{", b'{"format": 3}'])
async def test_each_given_master_key_is_tried(rotten: bytes) -> None:
    inner = MemoryStore()
    await encrypted(inner, masters(old=1)).create("n", [b"x"])
    wrap = await wrap_name(inner)
    await inner.create(f"{wrap.rpartition('/')[0]}/new", [rotten])
    both = masters(new=2, old=1)
    assert bytes(await encrypted(inner, both).read("n")) == b"x"
    await encrypted(inner, both).create("m", [b"y"])
    await rewrap(inner, both)
    for name, body in (("n", b"x"), ("m", b"y")):
        assert bytes(await encrypted(inner, masters(new=2)).read(name)) == body


@pytest.mark.parametrize("name", ["deadbeef/zz", "deadbeef/a", "deadbeef/../zz"])
async def test_a_foreign_object_among_the_keys_stops_nothing(name: str) -> None:
    inner = MemoryStore()
    await encrypted(inner, masters(a=1)).create("n", [b"x"])
    try:
        await inner.create(f"{KEYS_PREFIX}{name}", [b""])
    except ValueError:
        return  # no storage has such a name
    store = encrypted(inner, masters(a=1))
    assert bytes(await store.read("n")) == b"x"
    await store.create("m", [b"y"])
    assert bytes(await encrypted(inner, masters(a=1)).read("m")) == b"y"


async def test_without_its_master_key_an_encrypted_storage_refuses_by_name() -> None:
    inner = MemoryStore()
    await encrypted(inner, masters(a=1)).create("n", [b"x"])
    with pytest.raises(Denied, match="it is encrypted: give its master key a"):
        await RefuseEncryptedStore(inner).read("n")
    with pytest.raises(Denied, match="under the master key a, which was not given"):
        await encrypted(inner, masters(b=1)).read("n")
    with pytest.raises(Corrupt, match="cannot be opened with the master key a: another key"):
        await encrypted(inner, masters(a=2)).read("n")


async def test_rewrapping_changes_no_object_but_the_wraps() -> None:
    inner = MemoryStore()
    await encrypted(inner, masters(a=1)).create("n", [b"x"])
    running = encrypted(inner, masters(a=1))
    assert bytes(await running.read("n")) == b"x"
    before = bytes(await inner.read("n"))
    (planned,) = await rewrap(inner, masters(b=2, a=1), dry_run=True)
    assert (planned.was_under, planned.under) == (("a",), "b")
    with pytest.raises(Denied):
        await encrypted(inner, masters(b=2)).read("n")
    assert await rewrap(inner, masters(b=2, a=1)) == [planned]
    assert bytes(await inner.read("n")) == before
    assert bytes(await encrypted(inner, masters(b=2)).read("n")) == b"x"
    with pytest.raises(Denied, match="master key b"):
        await encrypted(inner, masters(a=1)).read("n")
    await running.create("m", [b"y"])  # one that runs goes on
    assert bytes(await encrypted(inner, masters(b=2)).read("m")) == b"y"
    again = await rewrap(inner, masters(b=2, a=1))
    assert again == [Rewrapped(planned.key_id, ("b",), "b")]
    with pytest.raises(Denied, match="wrapped by b, which was not given"):
        await rewrap(inner, masters(c=3, a=1))


async def test_a_new_master_key_without_rewrapping_begins_a_data_key() -> None:
    inner = MemoryStore()
    await encrypted(inner, masters(a=1)).create("n", [b"x"])
    reader = encrypted(inner, masters(b=2, a=1))
    assert bytes(await reader.read("n")) == b"x"
    await encrypted(inner, masters(b=2, a=1)).create("m", [b"y"])
    assert bytes(await reader.read("m")) == b"y"  # the new key is looked for
    assert sorted(map(tuple, (await wraps_in(inner)).values())) == [("a",), ("b",)]


@pytest.mark.parametrize("kind", ["crash_before", "crash_after"])
async def test_a_rewrapping_that_dies_at_any_request_loses_no_data_key(kind: str) -> None:
    call = 1
    while True:
        inner = MemoryStore()
        await encrypted(inner, masters(a=1)).create("n", [b"x"])
        await encrypted(inner, masters(b=2, a=1)).create("m", [b"y"])
        dying = FaultyObjectStore(inner, faults=[Fault(kind, calls=(call,))])  # type: ignore[arg-type]
        both = masters(c=3, b=2, a=1)
        try:
            await rewrap(dying, both)
        except Crashed:
            assert bytes(await encrypted(inner, both).read("n")) == b"x"
            assert bytes(await encrypted(inner, both).read("m")) == b"y"
        else:
            break
        await rewrap(inner, both)
        assert bytes(await encrypted(inner, masters(c=3)).read("n")) == b"x"
        assert bytes(await encrypted(inner, masters(c=3)).read("m")) == b"y"
        call += 1
    assert call > 8


class RewrappedMeanwhile(MemoryStore):
    """A storage whose data keys are wrapped anew right after they were listed, once."""

    masters: MasterKeys | None = None

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        found = await super().list(prefix, after=after)
        masters, self.masters = self.masters, None
        if masters is not None:
            await rewrap(self, masters)
        return found


async def test_a_start_beside_a_rewrapping_takes_no_object_for_missing() -> None:
    inner = RewrappedMeanwhile()
    await encrypted(inner, masters(a=1)).create("n", [b"x"])
    both = inner.masters = masters(b=2, a=1)
    store = encrypted(inner, both)
    assert bytes(await store.read("n")) == b"x"


async def test_a_lost_reply_while_a_data_key_begins_leaves_the_storage_usable() -> None:
    inner = MemoryStore()
    losing = FaultyObjectStore(inner, faults=[Fault("lost_reply", "create", calls=(1,))])
    store = encrypted(losing, masters(a=1))
    with pytest.raises(Unavailable):
        await store.create("n", [b"x"])
    await store.create("n", [b"x"])
    assert bytes(await encrypted(inner, masters(a=1)).read("n")) == b"x"


async def test_damaged_and_newer_wraps_are_said() -> None:
    inner = MemoryStore()
    await encrypted(inner, masters(a=1)).create("n", [b"x"])
    name = await wrap_name(inner)
    for text, kind in ((b"{", Corrupt), (b"[]", Corrupt), (b'{"format": 3}', Denied)):
        await inner.delete([name])
        await inner.create(name, [text])
        with pytest.raises(kind):
            await encrypted(inner, masters(a=1)).read("n")
