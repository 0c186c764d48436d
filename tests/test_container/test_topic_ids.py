"""Ids of new topics: each is given once, also after rounds that failed, and without a search."""

from collections.abc import Iterator

import pytest

from container.metadata.operations import PutTopic
from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from container.tier import Tier
from provider.errors import Unavailable
from provider.ranges import QueueOffset
from tests.support.owned_tier import OwnedWorld, planned, put

BUSY = QueueId("Busy", 0)


def world() -> OwnedWorld:
    return OwnedWorld(TierOptions(), UpkeepOptions(interval_s=20.0), packed=True)


async def put_in_vain(here: OwnedWorld, tier: Tier, queue: QueueId) -> None:
    """A round of a queue and of another one that was deleted since it was planned."""
    await put(tier, 1, BUSY)
    plans = [planned(tier, 1, BUSY), planned(tier, 1, queue)]
    await tier.delete_topic(BUSY.topic)
    with pytest.raises(Unavailable):
        await tier.commit(plans)
    await here.pass_time(60)


async def test_topics_whose_first_rounds_failed_are_tiered_under_ids_of_their_own() -> None:
    here = world()
    names = ["X", "Y", "U", "V"]
    async with here.owned() as tier:
        x, y, u, v = (QueueId(name, 0) for name in names)
        await put_in_vain(here, tier, x)
        await put(tier, 1, y)
        await put_in_vain(here, tier, u)
        for queue in (x, v, u):
            await put(tier, 1, queue)
        ids = [tier.state.topics[name].topic_id for name in names]
        assert len(set(ids)) == len(names)
        tier.state.check()


class Unsearchable(dict[str, object]):
    def __iter__(self) -> Iterator[str]:
        raise AssertionError("searched")

    values = items = keys = __iter__  # type: ignore[assignment]


async def test_the_id_of_a_new_topic_is_found_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with world().owned() as tier:
        await put(tier, 1, BUSY)
        with monkeypatch.context() as patch:
            topics = Unsearchable(tier.journal.planned.topics)
            patch.setattr(tier.journal.planned, "topics", topics)
            operations = [
                one
                for number in range(100)
                for one in tier._beginning_of(QueueId(f"T{number}", 0), QueueOffset(0))
            ]
            tier.journal.planned.plan(operations)
        ids = [one.topic.topic_id for one in operations if isinstance(one, PutTopic)]
        assert ids == list(range(1, 101))
