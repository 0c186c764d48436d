"""What the hot log alone has is worked out anew when one of both sides changed, and only then."""

from pathlib import Path
from unittest.mock import patch

from provider.clock import SystemClock
from tests.support.hot_store import new_message
from tests.support.tiered_world import TieredWorld
from tieredstore.store.key_query import Untiered
from tieredstore.store.local import LocalMessageStore


async def test_it_follows_what_is_put_tiered_and_deleted(tmp_path: Path) -> None:
    world = TieredWorld(tmp_path / "store", SystemClock())
    async with world.store("FORCE") as store:
        untiered, cold = Untiered(world.local), store.cold
        assert cold is not None
        assert await untiered.spans("orders", cold) == {}
        await store.set_level("DISABLE")
        await store.put_messages([new_message(number, topic="orders") for number in range(3)])
        await store.put_message(new_message(3, topic="orders", queue_id=1))
        assert await untiered.spans("orders", cold) == {0: [(0, 3)], 1: [(0, 1)]}
        await store.set_level("FORCE")
        await world.move(store)
        assert await untiered.spans("orders", cold) == {}
        await store.set_level("DISABLE")
        await store.put_message(new_message(4, topic="orders"))
        assert await untiered.spans("orders", cold) == {0: [(3, 4)]}
        await world.local.delete_topics(["orders"])
        assert await untiered.spans("orders", cold) == {}


async def test_nothing_is_asked_again_while_nothing_changes(tmp_path: Path) -> None:
    world = TieredWorld(tmp_path / "store", SystemClock())
    async with world.store("FORCE") as store:
        await store.put_message(new_message(0, topic="orders"))
        await world.move(store)
        assert store.cold is not None
        untiered = Untiered(world.local)
        first = await untiered.spans("orders", store.cold)
        with patch.object(LocalMessageStore, "queue_ids", side_effect=AssertionError):
            assert await untiered.spans("orders", store.cold) is first
