"""What a query asks the storage for: a slot of each file, and more only where that has items."""

from container.index.options import IndexOptions
from container.lookup.find import find_messages
from container.lookup.query import KeyQuery, LookupLimits
from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from container.tier_view import TierReader
from provider.testing.faulty import FaultyObjectStore
from tests.support.messages import TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, put

INDEX_ONLY = LookupLimits(scan_bytes_max=0)
FILES = 8


async def test_a_key_that_no_file_has_costs_little_more_than_a_slot_of_each() -> None:
    index = IndexOptions(items_max=100, merge_growth=1000.0)
    over = OwnedWorld(TierOptions(), UpkeepOptions(interval_s=1.0), index=index)
    async with over.owned() as tier:
        for _ in range(FILES):
            await put(tier, 100)
            await over.pass_time(2)
        assert len(tier.state.index_files) == FILES
    store = FaultyObjectStore(over.memory)
    reader = await TierReader.open(store)
    before = store.items["read_many"]
    for number in range(100):
        found = await find_messages(reader, KeyQuery(TOPIC, f"no-{number}", 9), limits=INDEX_ONLY)
        assert not found.messages
    asked = (store.items["read_many"] - before) / 100
    assert FILES < asked < 1.65 * FILES, "with four items a slot it was nearly twice"


async def test_files_of_other_topics_and_times_are_not_asked() -> None:
    index = IndexOptions(items_max=100, merge_growth=1000.0)
    over = OwnedWorld(TierOptions(), UpkeepOptions(interval_s=1.0), index=index)
    async with over.owned() as tier:
        for queue in (QUEUE, QueueId("Other", 0)):
            await put(tier, 100, queue)
            await over.pass_time(2)
        first, _ = sorted(tier.state.index_files.values(), key=lambda one: tuple(one.coverage))
    store = FaultyObjectStore(over.memory)
    reader = await TierReader.open(store)
    before = store.items["read_many"]
    await find_messages(reader, KeyQuery("Other", "no", 9), limits=INDEX_ONLY)
    assert store.items["read_many"] - before <= 2
    before = store.items["read_many"]
    late_ms = max(one.end_timestamp for one in reader.state.index_files.values()) + 1
    await find_messages(reader, KeyQuery("Other", "no", 9, late_ms), limits=INDEX_ONLY)
    assert store.items["read_many"] == before
    assert first.coverage[0][0].topic == "Other"
