"""A clock that somebody sets, to 1970, to 2099 and back, while messages are tiered and objects go.

Tiering measures time by the monotonic clock; the wall clock tells only when an object may be
deleted. Nothing that is published may depend on it.
"""

from dataclasses import replace

import pytest

from container.names.queue_id import QueueId
from container.tier_view import TierReader
from provider.testing.memory import MemoryStore
from tests.support.simulated_time import SimulatedClock, simulated
from tests.support.store_harness import UPKEEP_OPTIONS, StoreHotLog, StoreProcess
from tests.support.store_reader import assert_follows, contents, findings

NOW_MS = 1_700_000_000_000
DAWN_MS = 0
FAR_MS = 4_070_908_800_000  # in 2099
QUEUES = [QueueId("T", number) for number in range(3)]
PAUSE_S = 6.0
UPKEEP = replace(UPKEEP_OPTIONS, grace_s=2.0)


class SetClock(SimulatedClock):
    """The loop's time, and a wall clock that is set while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.started_ms = NOW_MS

    def now_ms(self) -> int:
        return self.started_ms + int(self.monotonic_s() * 1000)


@pytest.mark.parametrize(
    "set_to",
    [
        (DAWN_MS, NOW_MS, FAR_MS, NOW_MS),
        (FAR_MS, DAWN_MS, FAR_MS, NOW_MS),
        (NOW_MS - 86_400_000, NOW_MS + 86_400_000, NOW_MS, DAWN_MS),
    ],
)
def test_messages_are_tiered_whatever_time_it_is_said_to_be(set_to: tuple[int, ...]) -> None:
    async def run() -> None:
        clock, memory = SetClock(), MemoryStore()
        hot = StoreHotLog(clock)

        async def sets_the_clock(process: StoreProcess) -> None:
            assert process.dispatcher is not None
            for started_ms in set_to:
                for queue in QUEUES:
                    hot.append(queue, *[bytes([process.number]) * 50] * 20)
                await process.dispatcher.drain(patience_s=60.0)
                clock.started_ms = started_ms
                for queue in QUEUES:
                    hot.append(queue, *[b"x" * 50] * 20)
                await process.dispatcher.drain(patience_s=60.0)
                await clock.sleep(PAUSE_S)  # upkeep writes snapshots and deletes what they replace

        for number in range(1, 3):
            process = StoreProcess(memory, hot, clock, number, upkeep=UPKEEP)
            await process.live(sets_the_clock)
            assert process.error is None
            await process.client.close()
        seen = await contents(await TierReader.open(memory, verify=True))
        for queue in QUEUES:
            assert_follows(seen[queue], hot.queues[queue])
            assert len(seen[queue].offsets) == 2 * len(set_to) * 40
        assert await findings(memory) == []

    simulated(run())
