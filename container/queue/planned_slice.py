"""What a commit adds to one segment: statistics before it is written, extents after it. Pure.

A plan knows everything of its extents but their place. The port says where a slice lies once it is
durable, and `PlannedSlice.placed` makes the extents of both. Whether the newest published extent
grows is decided there too: it does where the slice lies right after it in the same object.
"""

from typing import NamedTuple

from container.metadata.operations import ALL_EXTENTS, SegmentChange
from container.metadata.records import Extent
from container.names.queue_id import SegmentType
from container.queue.crc32c_parts import crc32c_of_rest
from provider.file_segments import Placement, SegmentSlice
from provider.ranges import QueueOffset


class RunStatistics(NamedTuple):
    """One future extent, or the new end of a growing one: all but its place."""

    position: int
    """First byte, counted from the segment's base."""
    length: int
    """Bytes, > 0."""
    crc32c: int
    """CRC-32C of the bytes. The first run of a slice that may grow an extent continues the
    checksum of that extent."""
    first_offset: QueueOffset
    """Queue offset of the first record or unit."""
    min_timestamp: int
    max_timestamp: int


class PlannedSlice(NamedTuple):
    """The bytes that continue one segment, with what is published of them after the write."""

    part: SegmentSlice
    """What the port writes."""
    type: SegmentType
    base: int
    runs: tuple[RunStatistics, ...]
    """The slice, cut at extents; each run becomes one extent."""
    extents: int
    """How many extents the segment has already."""
    growing: Extent | None
    """The last of them, if the first run fits into it, too, and its checksum is known."""
    created_ms: int
    epoch: int
    sealed_ms: int | None

    def placed(self, placement: Placement) -> SegmentChange:
        """What is to be published of the slice now that it lies at `placement`."""
        part, growing, keep = self.part, self.growing, self.extents
        name = "" if placement.object_name == part.segment else placement.object_name
        shift = placement.object_offset - part.position
        first = self.runs[0]
        if growing is None:
            extents = [_extent(first, name, shift)]
        elif _continues(growing, name, first.position + shift):
            extents = [_grown(growing, first)]
            keep -= 1
        else:
            assert growing.crc32c is not None, "planned to grow"
            own = crc32c_of_rest(first.crc32c, growing.crc32c, first.length)
            extents = [_extent(first._replace(crc32c=own), name, shift)]
        extents += [_extent(run, name, shift) for run in self.runs[1:]]
        if name and keep:  # parts may be merged between the plan and the commit
            keep = ALL_EXTENTS
        return SegmentChange(
            self.type,
            self.base,
            keep,
            tuple(extents),
            created_ms=self.created_ms,
            epoch=self.epoch,
            sealed_ms=self.sealed_ms,
        )


def _continues(extent: Extent, object_name: str, object_offset: int) -> bool:
    """Whether bytes at this place follow the extent in its own object."""
    return (extent.object_name, extent.object_offset + extent.length) == (
        object_name,
        object_offset,
    )


def _extent(run: RunStatistics, object_name: str, shift: int) -> Extent:
    """The extent of one run whose bytes lie `shift` bytes further on in the object."""
    return Extent(*run, object_name, run.position + shift)


def _grown(extent: Extent, run: RunStatistics) -> Extent:
    """A published extent, continued by one more run."""
    return Extent(
        extent.position,
        extent.length + run.length,
        run.crc32c,
        extent.first_offset,
        min(extent.min_timestamp, run.min_timestamp),
        max(extent.max_timestamp, run.max_timestamp),
        extent.object_name,
        extent.object_offset,
    )
