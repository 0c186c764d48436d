"""Present places of published bytes, for a plan that is older than the tier.

An owner merges, offloads, truncates and deletes while a job reads. So bytes that are missing at
their planned place are looked up in the newest metadata before they are reported.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from container.errors import BytesMissing, Expired
from container.metadata.object_names import object_name
from container.metadata.records import Queue
from container.names.queue_id import QueueId, SegmentType
from container.tier_reader import TierReader
from provider.errors import NotFound, Unavailable
from provider.object_store import ObjectStore
from tieredstore.offline.scan.sources import store_at
from tieredstore.offline.scan.split import LogPiece, TierPlace, pieces_between

ResultT = TypeVar("ResultT")
RELOCATIONS_MAX = 100
"""Times that one reader looks its bytes up: more means that the tier changes faster than it is
read."""

EXPIRED = "expired"
DELETED = "were deleted with their topic"
REPLACED = "were truncated, or deleted and their topic created again,"
"""Fates of messages that left a tier, as predicates of a sentence."""


class PlannedQueue(NamedTuple):
    """The incarnation of a queue that a plan was made of."""

    queue: QueueId
    generation: int
    """`Queue.generation`: positions mean other bytes in another one."""


class Relocated(NamedTuple):
    """Bytes of a flat file as the newest metadata have them."""

    pieces: tuple[LogPiece, ...]
    """Touching, from the first byte that is left on; () if nothing is left."""
    min_offset: int
    """Queue offset of the oldest message that the queue has."""
    cause: str
    """Why bytes before `pieces` are not there any more."""


class Relocator:
    """Looks up bytes of one flat file that are not at their planned place. Blocks."""

    def __init__(
        self, place: TierPlace, planned: PlannedQueue, kind: SegmentType, end: int
    ) -> None:
        """`end`: the first byte of the flat file that is not planned."""
        self.planned = planned
        self._place = place
        self._kind = kind
        self._end = end
        self._count = 0

    def moved(self, piece: LogPiece, at: int) -> Relocated | None:
        """Find the new place of bytes that are missing at byte `at` of a piece's object.

        None if they are still published there: then the storage lost them. Reads the newest
        snapshot, the entries after it, and manifests of the queue.

        Raises:
            NotFound: this process sees no tier.
            Unavailable: the storage does not answer, or the bytes move repeatedly.
            Corrupt, Denied: the metadata cannot be read.
        """
        self._count += 1
        if self._count > RELOCATIONS_MAX:
            raise Unavailable("the tier changes faster than it is read", piece.object_name, at)
        start = piece.position + at - piece.object_offset
        found = _asked(self._place, _relocated, self.planned, self._kind, start, self._end)
        now = found.pieces[0] if found.pieces else None
        planned = (start, piece.object_name, at)
        is_same = now and (now.position, now.object_name, now.object_offset) == planned
        return None if is_same else found


def is_published(place: TierPlace, index_file: str) -> bool:
    """Whether the newest metadata name an index file; costs and raises as `Relocator.moved`."""
    return _asked(place, _is_published, index_file)


def _asked(
    place: TierPlace, work: Callable[..., Awaitable[ResultT]], *arguments: object
) -> ResultT:
    try:
        return store_at(place).call(work, *arguments)
    except BytesMissing:
        raise
    except NotFound as error:
        raise NotFound(
            "this process sees no tier there: every worker needs the same directory or store",
            place.location,
        ) from error


async def _is_published(store: ObjectStore, index_file: str) -> bool:
    return index_file in (await TierReader.open(store)).state.index_files


async def _relocated(
    store: ObjectStore, planned: PlannedQueue, kind: SegmentType, start: int, end: int
) -> Relocated:
    reader = await TierReader.open(store)
    queue = reader.queue(planned.queue)
    if queue is None:
        return Relocated((), 0, DELETED)
    if queue.generation != planned.generation:
        return Relocated((), 0, REPLACED)
    container = reader.container(queue.id)
    assert container is not None, "the queue is in the same state"
    pieces: list[LogPiece] = []
    for segment in await container.segments(kind):
        for extent in segment.extents if segment.is_readable else ():
            name = object_name(queue.id, segment, extent)
            place = segment.base + extent.position
            piece = LogPiece(place, extent.length, name, extent.object_offset)
            if pieces and pieces[-1].end != place and piece.end > start:
                return _of(queue, pieces, start, end)
            pieces.append(piece)
    return _of(queue, pieces, start, end)


def _of(queue: Queue, pieces: list[LogPiece], start: int, end: int) -> Relocated:
    return Relocated(pieces_between(pieces, start, end), queue.min_offset, EXPIRED)


def expired(queue: QueueId, found: Relocated) -> Expired:
    """The error of a reader whose planned messages left the tier."""
    below = f" below {found.min_offset:,}" if found.min_offset else ""
    return Expired(
        f"messages of {queue}{below} {found.cause} after this was planned: run it again",
        str(queue),
    )
