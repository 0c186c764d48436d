"""Present places of published bytes, for a plan that is older than the tier.

An owner merges, offloads, truncates and deletes while a job reads. So bytes that are missing at
their planned place are looked up in the newest metadata before they are reported.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeVar

from container.errors import BytesMissing, Expired
from container.metadata.objects import object_name
from container.metadata.records import Queue
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.tier_view import TierReader
from provider.errors import NotFound, Unavailable
from provider.object_store import ObjectStore
from tieredstore.offline.scan.sources import store_at
from tieredstore.offline.scan.split import NOT_KNOWN, LogPiece, Seen, TierPlace, pieces_between

RELOCATIONS_MAX = 100
"""Times that one reader looks its bytes up: more means that the tier changes faster than it is
read."""

PLANS_MAX = 8
"""Attempts of a plan whose manifests are replaced meanwhile."""
ResultT = TypeVar("ResultT")
SAME_PLACE = "every worker needs the same directory or store"
EXPIRED = "expired"
DELETED = "were deleted with their topic"
REPLACED = "were truncated, or deleted and their topic created again,"
"""Fates of messages that left a tier, as predicates of a sentence."""


class PlannedQueue(NamedTuple):
    """The incarnation of a queue that a plan was made of."""

    queue: QueueId
    generation: int
    """`Queue.generation`: positions mean other bytes in another one."""
    seen: Seen = NOT_KNOWN


class Relocated(NamedTuple):
    """Bytes of a flat file as the newest metadata have them."""

    pieces: tuple[LogPiece, ...]
    """Touching, from the first byte that is left on; () if nothing is left."""
    min_offset: int
    """Queue offset of the oldest message that the queue has."""
    cause: str
    """Why bytes before `pieces` are not there any more."""


class Relocator:
    """Finds bytes of one flat file that are not at their planned place. Blocks."""

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
            NotFound: this process sees no tier, or another one.
            Unavailable: the storage does not answer, or this process sees an older state than that
                of the plan, or the bytes move repeatedly.
            Corrupt, Denied: the metadata cannot be read.
        """
        self._count += 1
        if self._count > RELOCATIONS_MAX:
            raise Unavailable("the tier changes faster than it is read", piece.object_name, at)
        start = piece.position + at - piece.object_offset
        found = store_at(self._place).call(
            _relocated, self._place, self.planned, self._kind, start, self._end
        )
        now = found.pieces[0] if found.pieces else None
        planned = (start, piece.object_name, at)
        is_same = now and (now.position, now.object_name, now.object_offset) == planned
        return None if is_same else found


def newest_state(place: TierPlace, seen: Seen) -> TierState:
    """The newest metadata; costs and raises as `Relocator.moved`."""
    return store_at(place).call(_newest_state, place, seen)


async def _newest_state(store: ObjectStore, place: TierPlace, seen: Seen) -> TierState:
    return (await _newest(store, place, seen)).state


async def _newest(store: ObjectStore, place: TierPlace, seen: Seen) -> TierReader:
    """The newest metadata; raises as `Relocator.moved`."""
    where = place.location
    try:
        reader = await TierReader.open(store)
    except BytesMissing:
        raise
    except NotFound as error:
        raise NotFound(f"this process sees no tier there: {SAME_PLACE}", where) from error
    now = Seen.of(reader.state)
    entry = await reader.entry_crc(seen.sequence) if seen.entry else 0
    if seen.begun_ms and now.begun_ms and seen.begun_ms != now.begun_ms:
        raise NotFound(f"this process sees another tier there: {SAME_PLACE}", where)
    if not seen.is_continued_by(now, entry):
        raise Unavailable(
            f"this process sees the tier as it was before, or was put back from an older "
            f"copy after this was planned: {SAME_PLACE}; after a restore, plan it again",
            where,
        )
    return reader


async def by_newest(reader: TierReader, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Return the result of `work`, which reads manifests; repeat it while they are replaced.

    An owner merges manifests and deletes the old ones, so that those of metadata that were read a
    while ago may be missing.

    Raises:
        BytesMissing: a manifest of the newest metadata is not in the storage.
        Unavailable: the tier changes faster than it is read.
        StoreError: any other error of `work`, or of the refresh.
    """
    for _ in range(PLANS_MAX):
        sequence = reader.state.sequence
        try:
            return await work()
        except BytesMissing:
            await reader.refresh(doubted=True)
            if reader.state.sequence == sequence:
                raise
    raise Unavailable("the tier changes faster than it is read", "")


async def _relocated(  # noqa: PLR0917 - one caller
    store: ObjectStore,
    place: TierPlace,
    planned: PlannedQueue,
    kind: SegmentType,
    start: int,
    end: int,
) -> Relocated:
    reader = await _newest(store, place, planned.seen)
    return await by_newest(reader, partial(_relocated_by, reader, planned, kind, start, end))


async def _relocated_by(
    reader: TierReader, planned: PlannedQueue, kind: SegmentType, start: int, end: int
) -> Relocated:
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
            begin = segment.base + extent.position
            piece = LogPiece(begin, extent.length, name, extent.object_offset)
            if pieces and pieces[-1].end != begin and piece.end > start:
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
