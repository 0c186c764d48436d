"""A guarded store: nothing is asked of it before somebody's look at it has ended well."""

import asyncio

import pytest

from provider.errors import Denied, Unavailable
from provider.object_store import ObjectStore
from provider.ranges import ByteRange
from provider.stores.verified import VerifiedStore
from provider.testing.faulty import Fault, FaultyObjectStore
from provider.testing.memory import MemoryStore


class Looks:
    """Answers looks one after the other: an error, or whether it was the last one."""

    def __init__(self, answers: list[bool | Exception]) -> None:
        self.answers = answers
        self.store: ObjectStore | None = None

    async def __call__(self, store: ObjectStore) -> bool:
        self.store = store
        await asyncio.sleep(0)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_nothing_is_asked_before_a_look_ended_well() -> None:
    inner = FaultyObjectStore(MemoryStore())
    looks = Looks([Unavailable("away", "@x/a"), Denied("another one", "@x/a"), True])
    store = VerifiedStore(inner, looks, prefix="@x/")
    with pytest.raises(Unavailable, match="away"):
        await store.create("@x/a", [b"abc"])
    with pytest.raises(Denied, match="another one"):
        await store.delete(["@x/a"])
    assert not inner.calls
    await store.create("@x/a", [b"abc"])
    assert looks.store is inner
    assert bytes(await store.read("@x/a")) == b"abc"
    assert not looks.answers


async def test_a_look_that_saw_nothing_yet_is_repeated_and_one_looks_at_a_time() -> None:
    inner = FaultyObjectStore(MemoryStore())
    looks = Looks([False, True])
    store = VerifiedStore(inner, looks, prefix="@x/")
    await store.verify()
    assert "not verified" in repr(store)
    await asyncio.gather(*(store.list("@x/") for _ in range(5)))
    assert inner.calls["list"] == 5
    assert not looks.answers
    await store.verify()
    assert "VerifiedStore verified" in repr(store)


async def test_many_calls_wait_no_longer_for_a_store_that_is_away_than_one() -> None:
    looks = Looks([Unavailable("away", "@keys/") for _ in range(2)])
    store = VerifiedStore(FaultyObjectStore(MemoryStore()), looks, prefix="@x/")
    calls = (store.read(f"@x/{number}") for number in range(20))
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert not looks.answers, "one for the first, and one for all who came meanwhile"
    assert [(type(one), one.path) for one in errors if isinstance(one, Unavailable)] == [
        (Unavailable, f"@x/{number}") for number in range(20)
    ]


async def test_what_fails_at_a_name_of_others_is_told_of_the_one_that_was_asked_for() -> None:
    inner = FaultyObjectStore(MemoryStore(), faults=[Fault("refused", "read")])
    store = VerifiedStore(inner, Looks([Unavailable("away", "@keys/"), True]), prefix="@x/")
    with pytest.raises(Unavailable) as told:
        await store.read_many([("@x/a", ByteRange(0, 1)), ("@x/b", ByteRange(0, 1))])
    assert told.value.path == "@x/a"
    with pytest.raises(Unavailable) as told:
        await store.read("@x/b")
    assert told.value.path == "@x/b"
