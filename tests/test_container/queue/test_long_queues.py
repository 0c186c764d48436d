"""Queues with more segments than a manifest may list: bounded manifests, and those of before."""

from collections.abc import Generator
from dataclasses import replace
from itertools import pairwise

import orjson
import pytest

from container.metadata import codec
from container.metadata.codec import decode_segments, decoding_segments, encode_segments
from container.metadata.records import Extent, ManifestRef, Queue, Segment
from container.names.queue_id import QueueId, SegmentType
from container.queue import manifest
from container.queue.manifest import MANIFEST_SEGMENTS_MAX, plan_manifest
from container.upkeep import retention
from provider.ranges import QueueOffset
from tests.support.messages import TOPIC
from tests.support.owned_tier import QUEUE, OwnedWorld, put_each_minute
from tests.test_container.upkeep.test_retention import EXPIRING, OPTIONS, readable

LOG = SegmentType.COMMIT_LOG


def listed(level: int, segments: int, base: int) -> ManifestRef:
    return ManifestRef(f"m{base}", LOG, base, base + segments, segments, segments, 0, 0, level)


def planned(refs: list[ManifestRef]) -> manifest.ManifestPlan | None:
    record = Queue(QUEUE, QueueOffset(0), QueueOffset(0), manifests=tuple(refs))
    return plan_manifest(record, sealed_segments_max=8, manifests_per_level_max=8)


def test_no_manifest_becomes_longer_than_its_bound_and_few_are_shorter() -> None:
    refs: list[ManifestRef] = []
    for number in range(3000):
        refs.append(listed(0, 8, 8 * number))
        while (plan := planned(refs)) is not None:
            at = refs.index(plan.merged[0])
            segments = sum(one.segments for one in plan.merged)
            refs[at : at + len(plan.merged)] = [listed(plan.level, segments, plan.merged[0].base)]
        assert all(one.segments <= MANIFEST_SEGMENTS_MAX for one in refs[-40:])
    assert all(one.end == after.base for one, after in pairwise(refs))
    assert len(refs) <= 3000 * 8 / MANIFEST_SEGMENTS_MAX + 4 * 8


def test_longer_manifests_of_older_programs_are_not_merged() -> None:
    refs = [listed(4, 32_768, 32_768 * number) for number in range(9)]
    assert planned(refs) is None


def some_segments(count: int) -> list[Segment]:
    return [
        Segment(LOG, 10 * n, 5, 1, (Extent(0, 10, 7, QueueOffset(n), n, n, f"@parts/{n}"),), 9)
        for n in range(count)
    ]


@pytest.mark.parametrize("count", [0, 1, 7, 200])
def test_a_manifest_in_pieces_is_what_it_is_as_a_whole(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "PIECE_BYTES", 300)
    odd = {"x": {"a": [1, {"type": 7}]}, "y": '"segments":[,{"type":'}
    for extra in (None, odd):
        segments = [replace(one, extra=extra or {}) for one in some_segments(count)]
        raw = encode_segments(QUEUE, segments)
        assert orjson.loads(raw)
        found, pauses = drained(decoding_segments(raw, path="p"))
        assert found == decode_segments(raw, path="p") == (QUEUE, tuple(segments))
        if extra is None:
            assert pauses >= count // 20


def drained(
    turns: Generator[None, None, tuple[QueueId, tuple[Segment, ...]]],
) -> tuple[tuple[QueueId, tuple[Segment, ...]], int]:
    """What a generator returns, and how often it paused."""
    pauses = 0
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


async def test_a_trim_cuts_a_long_manifest_of_an_older_program_into_bounded_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = QueueId(TOPIC, 0)
    options = replace(OPTIONS, commit_log_bytes_max=400, extent_bytes_max=400)
    world = OwnedWorld(options, replace(EXPIRING, expiry_interval_s=1e9))
    async with world.owned() as tier:
        await put_each_minute(tier, world.clock, 130, queue)
        await world.pass_time(60)
        steps = [one.step for one in tier.upkeep._scheduled]
        (step,) = (one for one in steps if isinstance(one, retention.RetentionStep))
        before = [one.segments for one in tier.state.queues[queue].manifests if one.type == LOG]
        assert max(before) > 60
        monkeypatch.setattr(retention, "MANIFEST_SEGMENTS_MAX", 10)
        monkeypatch.setattr(manifest, "MANIFEST_SEGMENTS_MAX", 10)
        await step.step()
        record = tier.state.queues[queue]
        assert record.min_offset > 60
        (first, *_) = (one for one in record.manifests if one.type == LOG)
        assert first.segments <= 10
        await world.pass_time(400)
        offsets = await readable(world, queue)
        assert offsets == list(range(offsets[0], 130))
