"""Promises of `FileSegments` as tests, for any implementation."""

# ruff: noqa: D102, ARG002 - test names are the sentences; a fixture may need another to be made

import pytest

from provider.errors import OutOfRange
from provider.file_segments import FileSegments, Placement, SegmentSlice
from provider.object_store import ObjectStore
from provider.ranges import ByteRange


async def content(store: ObjectStore, placement: Placement, length: int) -> bytes:
    """Read the bytes at a placement."""
    start = placement.object_offset
    return bytes(await store.read(placement.object_name, ByteRange(start, start + length)))


class FileSegmentsContract:
    """Tests of every implementation of file segments."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        """The empty store that the segments lie in; override it."""
        raise AssertionError("override the fixture `store`")

    @pytest.fixture
    def segments(self, store: ObjectStore) -> FileSegments:
        """The segments under test, of epoch 1, the only owner there ever was; override it."""
        raise AssertionError("override the fixture `segments`")

    async def test_what_was_written_reads_back_at_its_placement(
        self, store: ObjectStore, segments: FileSegments
    ) -> None:
        placements = await segments.write(
            [
                SegmentSlice("t/0/LOG/0", 0, (b"abc", b"def")),
                SegmentSlice("t/0/CQ/0", 0, (b"0123",)),
                SegmentSlice("t/1/LOG/0", 0, (b"x" * 5000,)),
            ]
        )
        assert len(placements) == 3
        assert await content(store, placements[0], 6) == b"abcdef"
        assert await content(store, placements[1], 4) == b"0123"
        assert await content(store, placements[2], 5000) == b"x" * 5000

    async def test_writing_the_same_again_is_safe(
        self, store: ObjectStore, segments: FileSegments
    ) -> None:
        for position, body in ((0, b"first"), (5, b"second")):
            for _ in range(3):
                (placed,) = await segments.write([SegmentSlice("s", position, (body,))])
                assert await content(store, placed, len(body)) == body

    async def test_other_bytes_may_follow_a_write_that_was_never_published(
        self, store: ObjectStore, segments: FileSegments
    ) -> None:
        await segments.write([SegmentSlice("s", 0, (b"never published",))])
        (placed,) = await segments.write([SegmentSlice("s", 0, (b"this one was",))])
        assert await content(store, placed, 12) == b"this one was"

    async def test_published_bytes_never_change(
        self, store: ObjectStore, segments: FileSegments
    ) -> None:
        published: list[tuple[Placement, bytes]] = []
        position = 0
        for number in range(10):
            body = b"%d-" % number * (number + 1)
            (placed,) = await segments.write([SegmentSlice("s", position, (body,))])
            published.append((placed, body))
            position += len(body)
            for placement, expected in published:
                assert await content(store, placement, len(expected)) == expected

    async def test_slices_of_one_segment_may_follow_one_another(
        self, store: ObjectStore, segments: FileSegments
    ) -> None:
        first, second = await segments.write(
            [SegmentSlice("s", 0, (b"ab",)), SegmentSlice("s", 2, (b"cd",))]
        )
        assert await content(store, first, 2) == b"ab"
        assert await content(store, second, 2) == b"cd"

    async def test_where_extents_grow_a_slice_lies_right_after_the_one_before(
        self, segments: FileSegments
    ) -> None:
        (first,) = await segments.write([SegmentSlice("s", 0, (b"ab",))])
        (second,) = await segments.write([SegmentSlice("s", 2, (b"cd",))])
        after_it = Placement(first.object_name, first.object_offset + 2)
        assert second == after_it or not segments.extents_grow

    async def test_what_is_preserved_outlives_a_new_segment_of_its_name(
        self, store: ObjectStore, segments: FileSegments
    ) -> None:
        (placed,) = await segments.write([SegmentSlice("s", 0, (b"unpublished",))])
        copies = await segments.preserve({"s": "@cut/s"})
        await segments.write([SegmentSlice("s", 0, (b"another one",))])
        kept = Placement(copies[0], 0) if copies else placed
        assert await content(store, kept, 11) == b"unpublished"

    async def test_what_this_owner_made_is_no_earlier_object(self, segments: FileSegments) -> None:
        await segments.write([SegmentSlice("s", 0, (b"ours",))])
        assert await segments.earlier_objects() == []

    async def test_no_slices_cost_nothing(self, segments: FileSegments) -> None:
        assert await segments.write([]) == []

    async def test_the_only_owner_need_not_roll(self, segments: FileSegments) -> None:
        assert not segments.must_roll(1)


class PackedSegmentsContract(FileSegmentsContract):
    """Additional tests if the slices of a round share one new object."""

    async def test_a_round_is_one_object_however_many_slices_it_has(
        self, store: ObjectStore, segments: FileSegments
    ) -> None:
        slices = [SegmentSlice(f"t/{n}/LOG/0", 0, (bytes([n]) * n,)) for n in range(1, 100)]
        placements = await segments.write(slices)
        assert len({placed.object_name for placed in placements}) == 1
        assert len(await store.list("")) == 1

    async def test_every_write_takes_another_name(self, segments: FileSegments) -> None:
        same = [SegmentSlice("s", 0, (b"same",))]
        names = {(await segments.write(same))[0].object_name for _ in range(20)}
        assert len(names) == 20

    async def test_segments_of_every_epoch_may_be_continued(self, segments: FileSegments) -> None:
        assert not any(segments.must_roll(epoch) for epoch in range(5))


class InPlaceSegmentsContract(FileSegmentsContract):
    """Additional tests if a segment is one object that grows."""

    async def test_lost_published_bytes_are_an_error(self, segments: FileSegments) -> None:
        await segments.write([SegmentSlice("s", 0, (b"abc",))])
        with pytest.raises(OutOfRange):
            await segments.write([SegmentSlice("s", 5, (b"x",))])
