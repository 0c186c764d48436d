"""An owner that verifies its tier in the background: a bounded part at each run."""

from dataclasses import replace

import pytest

from container.check.scrub import read_mark
from container.names.queue_id import QueueId
from container.options import TierOptions, UpkeepOptions
from tests.support.messages import TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, put

OTHER = QueueId(TOPIC, 1)
OPTIONS = TierOptions(commit_log_bytes_max=2_000, consume_queue_bytes_max=200)
UPKEEP = UpkeepOptions(interval_s=1, scrubs=True, scrub_interval_s=10, scrub_operations_max=5)
PIECE_MAX = 20
"""Requests of the longest piece of work here, with those for the mark."""


def world(*, packed: bool, **upkeep: bool) -> OwnedWorld:
    return OwnedWorld(OPTIONS, replace(UPKEEP, **upkeep), packed=packed)


async def test_an_owner_does_not_scrub_unless_it_is_told_to() -> None:
    w = world(packed=True, scrubs=False)
    async with w.owned() as tier:
        await put(tier, 10)
        await w.pass_time(100)
        assert "scrub" not in tier.upkeep.statistics().steps
    assert not await w.memory.list("@scrub/")


@pytest.mark.parametrize("packed", [False, True], ids=["in place", "packed"])
async def test_rounds_end_in_runs_of_bounded_cost(*, packed: bool) -> None:
    w = world(packed=packed)
    async with w.owned() as tier:
        for _ in range(4):
            await put(tier, 10, QUEUE, OTHER)
        while not tier.upkeep.statistics().figures["scrub_rounds"]:
            before = tier.upkeep.statistics().figures["scrub_operations"]
            await w.pass_time(10.5)
            asked = tier.upkeep.statistics().figures["scrub_operations"] - before
            assert 0 < asked <= 2 * (UPKEEP.scrub_operations_max + PIECE_MAX)
        figures, steps = tier.upkeep.statistics().figures, tier.upkeep.statistics().steps
        queues = [segments for queue in (QUEUE, OTHER) if (segments := tier.segments(queue))]
        assert len(queues) == 2
        sizes = [one.size_bytes or 0 for segments in queues for one in await segments.listed()]
        assert figures["scrubbed_bytes"] >= sum(sizes) > 0
        assert figures["scrub_findings"] == 0
        assert steps["scrub"].runs > 2
        assert steps["scrub"].failures == 0
        await tier.close()
    assert (await read_mark(w.memory)).round > 1
    assert await w.findings() == []


async def test_the_next_owner_goes_on_where_this_one_stopped() -> None:
    w = world(packed=True)
    async with w.owned() as tier:
        for _ in range(4):
            await put(tier, 10, QUEUE, OTHER)
        await w.pass_time(10.5)
        await tier.close()
    first = await read_mark(w.memory)
    assert (first.number, first.round) == (1, 1)
    async with w.owned() as tier:
        await w.pass_time(40)
        second = await read_mark(w.memory)
        assert second.number > 1
        assert (second.round, second.place) > (1, first.place)
        await tier.close()


@pytest.mark.leaves_findings("checksum", "tag-hash", why="a part is changed")
async def test_a_changed_bit_is_told_by_the_run_that_meets_it() -> None:
    w = world(packed=True)
    async with w.owned() as tier:
        await put(tier, 10)
        (part,) = tier.state.parts
        raw = bytearray(await w.memory.read(part))
        raw[-1] ^= 1
        await w.memory.delete([part])
        await w.memory.create(part, [bytes(raw)])
        while not tier.upkeep.statistics().figures["scrub_findings"]:
            assert not tier.upkeep.statistics().figures["scrub_rounds"]
            await w.pass_time(10.5)
        assert "scrub: checksum" in tier.upkeep.statistics().last_error
        assert part in tier.upkeep.statistics().last_error
        await put(tier, 1, OTHER)  # nothing waits for it
        await tier.close()
