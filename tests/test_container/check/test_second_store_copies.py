"""Two copies of one tier and one second store: the owner of the other copy is refused."""

from collections.abc import Sequence

import pytest

from container.check.metadata import register_at_second_store
from container.names.tier_objects import OWNER_PREFIX
from provider.errors import Denied
from provider.stores.two_stores import TwoStores
from provider.testing.memory import MemoryStore

HOME = "0123456789abcdef"
FIRST, SECOND, THIRD, FOURTH = (f"{number:032x}" for number in range(1, 5))


async def own(
    first: MemoryStore, second: MemoryStore, nonce: str, *, where: str, is_new: bool = False
) -> None:
    both = TwoStores(first, second)
    await register_at_second_store(both, HOME, nonce, where=where, is_new=is_new)


class Undeletable(MemoryStore):
    """A store that deletes nothing."""

    async def delete(self, names: Sequence[str]) -> None:
        if names:
            raise Denied("these credentials may not do this", names[0])


async def copied(store: MemoryStore) -> MemoryStore:
    copy = MemoryStore()
    for one in await store.list(""):
        await copy.create(one.name, [await store.read(one.name)])
    return copy


async def test_owners_of_one_tier_follow_one_another() -> None:
    first, second = MemoryStore(), MemoryStore()
    for nonce in (FIRST, SECOND, THIRD):
        await own(first, second, nonce, where="/tier")
    assert len(await first.list(OWNER_PREFIX)) == 1
    assert [one.name for one in await second.list("")] == [f"@offload/{HOME}/@owner/{THIRD}"]


async def test_owners_follow_one_another_while_nothing_can_be_deleted() -> None:
    first, second = MemoryStore(), Undeletable()
    for nonce in (FIRST, SECOND):
        await own(first, second, nonce, where="/tier")
    assert len(await first.list(OWNER_PREFIX)) == len(await second.list("")) == 2
    with pytest.raises(Denied, match="may not do this"):
        await own(first, second, FOURTH, where="/moved", is_new=True)
    deletable = await copied(second)
    await own(first, deletable, THIRD, where="/moved", is_new=True)
    assert [one.name for one in await deletable.list("")] == [f"@offload/{HOME}/@owner/{THIRD}"]


async def test_a_copy_at_another_place_is_refused_while_the_original_lives() -> None:
    first, second = MemoryStore(), MemoryStore()
    await own(first, second, FIRST, where="/tier")
    copy = await copied(first)
    with pytest.raises(Denied, match="another copy of this tier, at /tier"):
        await own(copy, second, SECOND, where="/copy")
    await own(first, second, THIRD, where="/tier")


async def test_a_copy_at_the_same_place_of_another_host_shuts_one_of_both_out() -> None:
    first, second = MemoryStore(), MemoryStore()
    await own(first, second, FIRST, where="/tier")
    copy = await copied(first)
    await own(copy, second, SECOND, where="/tier")
    with pytest.raises(Denied, match="another copy of this tier"):
        await own(first, second, THIRD, where="/tier")


async def test_an_explicit_word_accepts_a_copy_and_refuses_the_others() -> None:
    first, second = MemoryStore(), MemoryStore()
    await own(first, second, FIRST, where="/tier")
    copy = await copied(first)
    await own(copy, second, SECOND, where="/copy", is_new=True)
    await own(copy, second, THIRD, where="/copy")
    with pytest.raises(Denied, match="another copy of this tier, at /copy"):
        await own(first, second, FOURTH, where="/tier")
