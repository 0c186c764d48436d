"""The second port: where the slices of file segments are put, and how they are found again.

A file segment (RocketMQ's word) is an append-only run of bytes `[base, base + size)` of one flat
file: a queue's CommitLog or ConsumeQueue. It is made of extents, and an extent says in which
object its bytes lie. A store that can append keeps one file per segment and grows it in place
(`stores/in_place_segments.py`); on an object store the slices of a round share one new object
(`stores/packed_segments.py`). The layer above plans slices and publishes placements; it does not
know which of the two it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from provider.object_store import Buffer


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """Bytes that continue one segment."""

    segment: str
    """The segment's name: RocketMQ's path of it, relative to the broker's directory."""
    position: int
    """Where in the segment the bytes go: its published size so far, in bytes."""
    buffers: tuple[Buffer, ...]
    reused: bool = False
    """Whether another segment may have had the name: an earlier owner may be about to delete it.
    Only where the slice begins the segment."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the bytes of a slice lie."""

    object_name: str
    object_offset: int


class FileSegments(Protocol):
    """A place that keeps file segments.

    S1  What `write` has acknowledged is durable, and reads back equal at its placement.
    S2  After any failure the same slices may be written again; that is how to continue.
    S3  No `write` changes a byte that was published before, and no deletion by an earlier owner
        reaches what `write` has acknowledged.
    S4  `must_roll` is true where S3 can only be kept by beginning a new segment: an earlier owner
        may still be alive and may still write after the published end of the segment.
    S5  What `preserve` was told of outlives every later `write`, where it lies or as a copy.
    S6  What `earlier_objects` returns can never be published again: references to it only go.
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

        Such a name does not say who made the object, and a later segment may have it again.
        """
        ...

    async def write(
        self, slices: Sequence[SegmentSlice], *, alone: bool = False
    ) -> list[Placement]:
        """Make all slices durable, and say where each lies, in the order of the arguments.

        One round of requests however many there are. `alone`: it is one slice, of a closed
        segment, and nothing else will lie in its object: a hint for people who look at the names.

        Raises:
            OutOfRange: a segment is shorter than its published size: bytes were lost.
            Unavailable: unknown outcome; call again with the same slices (S2).
            Fenced: a newer owner has the tier.
        """
        ...

    async def preserve(self, copies: Mapping[str, str]) -> list[str]:
        """Keep the bytes of segments that are about to be unpublished whole, whatever is written.

        `copies` has, for each segment with an own file, a name that a copy of it may have. Returns
        the names of copies that were made; a place where no later segment overwrites anything
        makes none. May be repeated.

        Raises:
            Unavailable: some copies may have been made; call again.
        """
        ...

    @property
    def forsaken(self) -> list[str]:
        """Names of this owner's that a failed `write` may have left, or may leave later (P7).

        None of them will ever be returned. Who has seen to one takes it out.
        """
        ...

    def forsake(self, placements: Sequence[Placement]) -> None:
        """What was written there will not be published: its objects are `forsaken`, too."""
        ...

    async def earlier_objects(self) -> list[str]:
        """Objects that earlier owners made under names that never come again, published or not.

        Those that nothing refers to were never published, or are no longer: they can go. Files
        with the names of segments are not among them; the layer above knows where those lie.

        Raises:
            Unavailable: try again.
        """
        ...

    def must_roll(self, segment_epoch: int) -> bool:
        """Whether a segment that the owner of `segment_epoch` began may not be continued."""
        ...


class SegmentsOwner(Protocol):
    """The owner that segments are written for; the part of a journal that a driver needs."""

    @property
    def epoch(self) -> int:
        """The epoch of the ownership; it never changes."""
        ...

    async def verify_owner(self) -> None:
        """Return if no newer owner has the tier. Some requests.

        Raises:
            Fenced: a newer owner has the tier.
            Unavailable: it could not be found out.
        """
        ...


class SegmentsDriver(Protocol):
    """Makes the `FileSegments` of one ownership, in two steps around the fence that takes it."""

    async def prepare(self) -> None:
        """Do what must precede the fence. Changes nothing that an earlier owner relies on.

        Raises:
            Denied: the storage cannot carry an owner.
            Unavailable: try again.
        """
        ...

    async def open(self, owner: SegmentsOwner) -> FileSegments:
        """The segments, once the ownership is taken. May wait for an earlier owner to end.

        Raises:
            Unavailable: try again, from the beginning.
        """
        ...
