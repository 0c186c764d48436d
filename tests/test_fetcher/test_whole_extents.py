"""Sequential reads end with extents and verify these besides bodies; small ones do not."""

import pytest

from container.names.queue_id import QueueId, SegmentType
from container.options import TierOptions, UpkeepOptions
from container.queue import commit_plan, message_queue_container
from container.record.checksum import crc32c
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from provider.object_store import Buffer
from tests.support.messages import TOPIC
from tests.support.owned_tier import OwnedWorld, put

QUEUE = QueueId(TOPIC, 0)
MESSAGES = 900
SMALL = TierOptions(commit_log_bytes_max=60_000, extent_bytes_max=5_000)
TIDY = UpkeepOptions(snapshot_entries_max=2, sealed_segments_max=1, interval_s=1.0)
OPTIONS = FetcherOptions(run_messages_max=64, window_messages_min=8, window_step_messages=32)


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the extents that are verified."""
    lengths: list[int] = []

    def counted(extent: Buffer) -> int:
        lengths.append(len(extent))
        return crc32c(extent)

    monkeypatch.setattr(message_queue_container, "crc32c", counted)
    return lengths


async def read_all(fetcher: TieredMessageFetcher, messages_max: int) -> list[int]:
    offsets: list[int] = []
    while True:
        found = await fetcher.get_message(
            "g", *QUEUE, len(offsets), messages_max=messages_max, bytes_max=None
        )
        if not len(found.messages):
            return offsets
        offsets += found.messages.offsets.tolist()


@pytest.mark.parametrize("packed", [False, True])
async def test_large_calls_verify_all_extents_and_small_ones_most(
    verified: list[int], *, packed: bool
) -> None:
    world = OwnedWorld(SMALL, TIDY, packed=packed)
    async with world.owned() as tier:
        for _ in range(MESSAGES // 300):
            await put(tier, 300, QUEUE)
        await world.pass_time(5.0)
        record = tier.queue(QUEUE)
        assert record is not None
        assert record.manifests, "ends of extents are found there, too"
        log_bytes = record.flat_end(SegmentType.COMMIT_LOG)
        for messages_max, share in ((64, 1.0), (8, 0.8)):
            verified.clear()
            async with TieredMessageFetcher(tier, options=OPTIONS) as fetcher:
                assert await read_all(fetcher, messages_max) == list(range(MESSAGES))
            assert sum(verified) >= share * log_bytes
        verified.clear()
        async with TieredMessageFetcher(tier, options=OPTIONS) as fetcher:
            await fetcher.get_message("g", *QUEUE, 400, messages_max=8)
        assert not verified
        await world.pass_time(20.0)


async def test_an_extent_of_a_log_ends_after_so_many_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_plan, "EXTENT_MESSAGES_MAX", 70)
    world = OwnedWorld(TierOptions(), TIDY)
    async with world.owned() as tier:
        for count in (50, 50, 200):
            await put(tier, count, QUEUE)
        record = tier.queue(QUEUE)
        assert record is not None
        (log,), (units,) = record.commit_log, record.consume_queue
        assert [one.first_offset for one in log.extents] == [0, 70, 140, 210, 280]
        assert len(units.extents) == 1
