"""The second port: placement of the slices of file segments in objects.

A file segment (RocketMQ's term) is the append-only bytes `[base, base + size)` of one flat file: a
queue's CommitLog or ConsumeQueue. It consists of extents, and an extent names the object that has
its bytes. A store that can append keeps one file per segment and grows it in place
(`stores/in_place_segments.py`). On an object store the slices of a round share one new object
(`stores/packed_segments.py`). The layer above plans slices and publishes placements; it does not
depend on either form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from provider.object_store import Buffer


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Bytes that continue one segment."""

    segment: str
    """Name of the segment: RocketMQ's path of it, relative to the broker's directory."""
    position: int
    """Position of the bytes in the segment: its published size so far, in bytes."""
    buffers: tuple[Buffer, ...]
    reused: bool = False
    """Whether another segment may have had the name, so that an earlier owner may be about to
    delete its file. Only for a slice that begins the segment."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Object and offset in bytes of a slice."""

    object_name: str
    object_offset: int


class FileSegments(Protocol):
    """Storage of file segments for one owner.

    S1  A slice that `write` acknowledged is durable, and reads back equal at its placement.
    S2  After any failure the same slices may be written again, which is the way to continue.
    S3  No `write` changes a byte that was published before, and no deletion by an earlier owner
        removes an acknowledged slice.
    S4  `must_roll` is true if only a new segment can keep S3: an earlier owner may still be alive
        and may still write after the published end of the segment.
    S5  The bytes of preserved segments outlive every later `write`, in place or as a copy.
    S6  Objects that `earlier_objects` returns can never be published again: references to them
        are only removed.
    """

    @property
    def extents_grow(self) -> bool:
        """Whether a slice usually lies right after the one before it, in the same object.

        A hint for the plan of a commit, which continues checksums; only placements decide.
        """
        ...

    @property
    def has_segment_names(self) -> bool:
        """Whether the object of a segment has the segment's own name.

        Such a name does not identify the writer, and a later segment may have it again.
        """
        ...

    async def write(
        self, slices: Sequence[SegmentSlice], *, alone: bool = False
    ) -> list[Placement]:
        """Make all slices durable, and return their placements in order.

        Costs one round of requests for any number of slices. `alone`: there is one slice, of a
        sealed segment, and its object will hold nothing else. It only affects the name.

        Raises:
            OutOfRange: a segment is shorter than its published size: bytes were lost.
            Unavailable: unknown outcome; call again with the same slices (S2).
            Fenced: a newer owner has the tier.
        """
        ...

    async def preserve(self, copies: Mapping[str, str]) -> list[str]:
        """Protect the bytes of segments that are about to be unpublished from later writes.

        `copies` maps each segment with a file of its own to the name of a possible copy. Returns
        the names of the copies. Storage in which no later segment overwrites anything makes none.
        May be repeated.

        Raises:
            Unavailable: some copies may exist; call again.
        """
        ...

    @property
    def abandoned(self) -> list[str]:
        """Names of objects that a failed `write` of this owner may have left, or may leave later.

        No `write` will return one of them. The caller that deleted one removes it from the list.
        See P7.
        """
        ...

    def abandon(self, placements: Sequence[Placement]) -> None:
        """Add the objects of placements that will not be published to `abandoned`."""
        ...

    async def earlier_objects(self) -> list[str]:
        """List objects of earlier owners with unique names, published or not.

        An object without a reference was never published, or is published no more, and is garbage.
        Files with the names of segments are not included; the layer above knows them.

        Raises:
            Unavailable: the storage did not respond; retry.
        """
        ...

    def must_roll(self, segment_epoch: int) -> bool:
        """Whether a segment that the owner of `segment_epoch` began may not be continued."""
        ...


class SegmentsOwner(Protocol):
    """Owner that segments are written for: the part of a journal that a driver needs."""

    @property
    def epoch(self) -> int:
        """Epoch of the ownership. Never changes."""
        ...

    async def verify_owner(self) -> None:
        """Return if no newer owner has the tier. Costs some requests.

        Raises:
            Fenced: a newer owner has the tier.
            Unavailable: the owner is unknown; retry.
        """
        ...


class SegmentsDriver(Protocol):
    """Factory of the `FileSegments` of one ownership: one step before the fence, one after it."""

    async def prepare(self) -> None:
        """Prepare before the fence. Changes nothing that an earlier owner relies on.

        Raises:
            Denied: the storage cannot support an owner.
            Unavailable: the storage did not respond; retry.
        """
        ...

    async def open(self, owner: SegmentsOwner) -> FileSegments:
        """Return the segments after the fence. May wait for an earlier owner to end.

        Raises:
            Unavailable: the storage did not respond; retry from `prepare` on.
        """
        ...
