"""The index looks for missing keys in the queues that changed, and in no other."""

import pytest

from container.index.options import IndexOptions
from container.lookup.collector import KeyCollector
from container.metadata.coverage import Span
from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from tests.support.messages import TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, put

INDEX = IndexOptions(items_max=100, age_s_max=1000.0, finish_items_min=50, finish_bytes_min=1 << 30)
OTHER = QueueId(TOPIC, 1)


async def test_only_queues_that_changed_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[QueueId] = []
    missing_of = KeyCollector.missing_of

    def noted(self: KeyCollector, queue_id: QueueId) -> list[Span]:
        seen.append(queue_id)
        return missing_of(self, queue_id)

    monkeypatch.setattr(KeyCollector, "check", lambda _: None)
    monkeypatch.setattr(KeyCollector, "missing_of", noted)
    upkeep = UpkeepOptions(interval_s=1.0, grace_s=0.0)
    over = OwnedWorld(TierOptions(cut_grace_hours=0), upkeep, index=INDEX)
    async with over.owned() as tier:
        await put(tier, 10, QUEUE, OTHER)
        await over.pass_time(3)
        assert seen == [QUEUE, OTHER]
        seen.clear()
        await over.pass_time(30)
        assert seen == []
        await put(tier, 1, OTHER)
        await over.pass_time(3)
        assert seen == [OTHER]
        seen.clear()
        await put(tier, 90, QUEUE)  # memory is full: a file comes, whose coverage counts
        await over.pass_time(3)
        assert len(tier.state.index_files) == 1
        assert set(seen) == {QUEUE, OTHER}
    over.kill_all()
    seen.clear()
    async with over.owned() as tier:  # another process knows of nothing what it has
        await over.pass_time(3)
        assert set(seen) == {QUEUE, OTHER}
        await over.pass_time(3)
        assert tier.upkeep.statistics().figures["index_messages_read"] == 0
