"""Loading of runs from the tier: units, ranges of the log, verification."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.errors import BytesMissing
from container.queue.message_queue_container import DamagedExtent, ExtentChecks
from container.record.batch import PREFIX_DTYPE, headers_at
from container.record.columns import Contents, verify_contents
from container.record.header import Coda
from container.record.unit import UNIT_BYTES, Units
from container.record.verification import (
    Fault,
    Faults,
    judge_headers,
    leading_good,
    leading_good_units,
)
from fetcher.options import FetcherOptions
from fetcher.plan import Stretch, plan_reads, stretches_of, units_taken
from fetcher.run_cache import CachedRun
from fetcher.single_flight import Flight, ReadBudget
from fetcher.source import TierQueue
from fetcher.tag_filter import Subscription, matching
from provider.clock import give_way
from provider.disk_cache.use import doubt
from provider.errors import Corrupt, NotFound, OutOfRange
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset

VERIFIED_TOGETHER = 512
"""Records that are verified before other tasks run."""
VERIFIED_BYTES = 512 << 10
"""Their bytes, about."""
NEXT_SHARE_MAX = 2.5
"""Bytes of the extent after a sequential read, per byte of it, up to which the next read has it as
a whole: a window doubles, and other messages have other sizes."""


class WholeRead(NamedTuple):
    """Units of a flight, and the bytes of the log in which its records should lie."""

    units: Units
    span: ByteRange
    pieces: list[Buffer]
    checks: ExtentChecks | None

    def has(self, positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
        """Whether the ascending records lie in `span`."""
        if not len(positions):
            return False
        end = int(positions[-1] + sizes[-1])
        return int(positions[0]) >= self.span.start and end <= self.span.end


async def read_whole(
    queue: TierQueue,
    flight: Flight,
    *,
    messages_max: int,
    options: FetcherOptions,
    budget: ReadBudget,
) -> WholeRead | None:
    """Read the units and records of a flight in one round of requests.

    Returns None if the log positions are unknown, if the bytes exceed one run, or if something is
    missing or damaged. The caller then reads the units first to find the damaged message.

    Raises:
        NotFound, Unavailable, Denied: the storage failed.
    """
    end = queue.log_position(QueueOffset(flight.end))
    if flight.log_start is None or end is None or flight.end - flight.start > messages_max:
        return None
    if not 0 < end - flight.log_start <= options.kept_bytes_max:
        return None
    span = ByteRange(flight.log_start, end)
    checks = _checks_for(flight, options)
    granted = await budget.acquire(flight, _asked_bytes(flight, span.length, options))
    try:
        units, pieces = await queue.units_and_pieces(
            QueueOffset(flight.start), QueueOffset(flight.end), span, checks
        )
    except (OutOfRange, Corrupt) as error:
        doubt()
        if isinstance(error, NotFound) and not isinstance(error, BytesMissing):
            raise
        return None
    finally:
        budget.release(granted)
    if sum(map(len, pieces)) != span.length:
        return None
    return WholeRead(units, span, pieces, checks)


def _checks_for(flight: Flight, options: FetcherOptions) -> ExtentChecks | None:
    """Return an empty record of verified extents; None if the verification is switched off."""
    return ExtentChecks(reads_whole=flight.reads_whole) if options.verify else None


def _asked_bytes(flight: Flight, length: int, options: FetcherOptions) -> int:
    """Return the most bytes that a read of so many bytes of the log has in memory."""
    along = 2 * options.extent_bytes_max if flight.reads_whole and options.verify else 0
    return max(length + along, options.requested_bytes(length))


class _Picked(NamedTuple):
    """Columns of the messages of a read, before their bytes are read."""

    end: int
    """First offset that the read does not cover."""
    has_all: bool
    """Whether all messages below `end` are included."""
    offsets: NDArray[np.int64]
    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]
    tag_hashes: NDArray[np.int32]
    odd_codes: NDArray[np.bool_]
    """Mask of the units whose tags code is not a hash of tags."""

    def leading(self, count: int) -> "_Picked":
        """Return the first `count` messages. The read then ends before the next one."""
        return self.part(0, count)

    def part(self, first: int, stop: int) -> "_Picked":
        """Return messages `first` to `stop`. The part ends before the next one."""
        return self._replace(
            end=int(self.offsets[stop]) if stop < len(self.offsets) else self.end,
            offsets=self.offsets[first:stop],
            positions=self.positions[first:stop],
            sizes=self.sizes[first:stop],
            tag_hashes=self.tag_hashes[first:stop],
            odd_codes=self.odd_codes[first:stop],
        )

    def past_codas(self, at_coda: NDArray[np.bool_]) -> "_Picked":
        """Move positions that point at a coda to the end of the coda."""
        positions = self.positions.copy()
        positions[at_coda] += Coda.SIZE
        return self._replace(positions=positions)

    def judge(
        self, data: Buffer, starts: NDArray[np.int64], queue_id: int
    ) -> tuple[Faults, NDArray[np.void]]:
        """Validate the headers of the records at `starts` in `data`. Return faults and headers."""
        return judge_headers(
            data,
            starts,
            self.sizes,
            queue_id=queue_id,
            queue_offsets=self.offsets,
            positions=self.positions,
        )

    def damaged_row(self, extent: DamagedExtent, good: int) -> int | None:
        """Return the first message that may be damaged; None if none of these is.

        `good`: number of leading messages without a fault of their own. A fault inside the extent
        explains its damage. A single flipped bit is found. Any other damage may lie in each message
        of the extent, and counts for its first one, so that a reader which skips that one gets on.
        """
        first, last = np.searchsorted(self.positions, (extent.span.start, extent.span.end)).tolist()
        if first == last or last > good:
            return None
        at = extent.flipped_position()
        if at is None:
            return first if self.positions[first] == extent.span.start else None
        row = int(np.searchsorted(self.positions, at, side="right")) - 1
        return row if row >= first and at < self.positions[row] + self.sizes[row] else None

    def where(self, mask: NDArray[np.bool_]) -> "_Picked":
        """Return the masked messages of the same stretch."""
        return self._replace(
            has_all=False,
            offsets=self.offsets[mask],
            positions=self.positions[mask],
            sizes=self.sizes[mask],
            tag_hashes=self.tag_hashes[mask],
            odd_codes=self.odd_codes[mask],
        )


class _Records(NamedTuple):
    """Messages that passed validation, and their bytes."""

    picked: _Picked
    data: Buffer
    starts: NDArray[np.int64]
    """First byte of each record in `data`."""
    contents: Contents | None
    """Result of the verification; None if it is switched off."""
    fault: Corrupt | None = None
    """Fault of the message at the end. None if all are valid."""


async def load_runs(
    queue: TierQueue,
    flight: Flight,
    *,
    messages_max: int,
    options: FetcherOptions,
    budget: ReadBudget,
) -> tuple[CachedRun, ...]:
    """Read the runs from `flight.start` on. Updates `flight.end` to the end that they will cover.

    Reads up to `messages_max` wanted messages of `[start, end)`, at least one of them or the whole
    range. The last run ends before the first damaged message. A new run begins where a large
    buffer of the storage ends, so that no large buffer is copied (decision 0043). Costs one round
    of requests for the units and one for the bytes, or one for both (`read_whole`). Costs none for
    bytes if no tag matches, and a few more around damage.

    With `options.verify`, all verification of a run happens here, once. A cached run is not
    verified again: memory is trusted. If units decide which records are skipped, their checksum
    must match. If it does not, the runs have all messages, so that the damage is reported at the
    damaged message.

    Raises:
        Corrupt: the first message or its unit is damaged; the error has path and position.
        OutOfRange: the messages are not published any more.
        BytesMissing: published bytes are missing.
        Unavailable: the storage did not respond; retry.
    """
    start = flight.start
    subscription = None if flight.reads_whole else flight.key.subscription
    units = None
    if subscription is not None and options.verify:
        units = await _proven_units(queue, flight, options, budget)
        subscription = None if units is None else subscription
    held = None
    if subscription is None and units is None:
        held = await read_whole(
            queue, flight, messages_max=messages_max, options=options, budget=budget
        )
        units = None if held is None else held.units
    if units is None:
        units = await _read_units(queue, flight)
    picked = _pick(units, flight, subscription, messages_max, options)
    if picked.end == start:
        path, position = f"{queue.id}/CONSUME_QUEUE", UNIT_BYTES * start
        raise Corrupt(f"impossible unit {units[:1].tolist()}", path, position)
    if flight.is_sequential and options.verify:
        picked = await _to_extent_end(queue, picked)
    while True:
        flight.end = picked.end
        try:
            checked = await _read_checked(queue, flight, picked, options, budget, held=held)
            break
        except (BytesMissing, Corrupt):
            doubt()
            held = None
            flight.reads_whole = False  # the rest of an extent may be what is missing
            # The damaged message is unknown. Bisect: messages before the damage can be served.
            count = len(picked.offsets) // 2
            if count == 0 and int(picked.offsets[0]) == start:
                raise
            picked = picked.leading(count)
    fault = checked[-1].fault
    flight.end = checked[-1].picked.end
    flight.ends_with_fault = fault is not None
    if fault is not None and flight.end == start:
        raise fault
    firsts = [start, *(records.picked.end for records in checked)]
    return tuple(_run(flight, *one) for one in zip(firsts, checked, strict=False))


def _run(flight: Flight, first: int, records: _Records) -> CachedRun:
    picked = records.picked
    return CachedRun(
        flight.key.whole if picked.has_all else flight.key,
        QueueOffset(first),
        QueueOffset(picked.end),
        records.data,
        offsets=picked.offsets,
        starts=records.starts,
        sizes=picked.sizes,
        tag_hashes=picked.tag_hashes,
        odd_codes=picked.odd_codes if picked.odd_codes.any() else None,
        contents=records.contents,
        ahead_of=flight.ahead_of,
    )


async def _proven_units(
    queue: TierQueue, flight: Flight, options: FetcherOptions, budget: ReadBudget
) -> Units | None:
    """Read the units of the flight and verify their checksums; None if one differs.

    Reserves the bytes of two extents, because the range may begin and end inside extents.
    """
    granted = await budget.acquire(flight, 2 * options.extent_bytes_max)
    try:
        start, end = QueueOffset(flight.start), QueueOffset(flight.end)
        units = await queue.units(start, end, verified=True)
        return units.copy()  # a view would keep the extents in memory
    except (BytesMissing, Corrupt):
        doubt()
        return None
    finally:
        budget.release(granted)


async def _read_units(queue: TierQueue, flight: Flight) -> Units:
    """Read the units of the flight. Shortens the flight to end before the first missing unit."""
    while True:
        try:
            return await queue.units(QueueOffset(flight.start), QueueOffset(flight.end))
        except BytesMissing:
            # The missing unit is unknown. Bisect: messages before it can be served.
            count = (flight.end - flight.start) // 2
            if count == 0:
                raise
            flight.end = flight.start + count


def _pick(
    units: NDArray[np.void],
    flight: Flight,
    subscription: Subscription | None,
    messages_max: int,
    options: FetcherOptions,
) -> _Picked:
    """Choose the messages to read and the end of the run. Empty if the first unit is invalid."""
    positions = units["position"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    low_bits = np.int32  # RocketMQ compares these
    tag_hashes: NDArray[np.int32] = units["tag_hash"].astype(low_bits)
    good = min(leading_good_units(positions, sizes), flight.end - flight.start)
    if good < min(len(units), flight.end - flight.start):
        doubt()
    wanted = None if subscription is None else matching(tag_hashes[:good], subscription)
    count = 0
    if good:
        count = units_taken(
            sizes[:good], wanted, messages_max=messages_max, bytes_max=options.kept_bytes_max
        )
    end = flight.start + count
    offsets = np.arange(flight.start, end, dtype=np.int64)
    picked = _Picked(
        end=end,
        has_all=True,
        offsets=offsets,
        positions=positions[:count],
        sizes=sizes[:count],
        tag_hashes=tag_hashes[:count],
        odd_codes=(units["tag_hash"] != tag_hashes)[:count],
    )
    if wanted is not None and count:
        mask = wanted[:count]
        total = int(picked.sizes.sum())
        share = int(picked.sizes[mask].sum()) / total
        fits = total <= options.kept_bytes_max
        if share < 1 and not (share >= options.whole_share_min and fits):
            return picked.where(mask)
    return picked


async def _read_checked(
    queue: TierQueue,
    flight: Flight,
    picked: _Picked,
    options: FetcherOptions,
    budget: ReadBudget,
    *,
    held: WholeRead | None,
) -> list[_Records]:
    """Read and validate the picked messages. Return the leading valid ones, at least one part.

    `held` has bytes that were read already, if any.
    """
    if not len(picked.offsets):
        return [_Records(picked, b"", picked.positions, None)]
    stretches, checks = await _read(queue, flight, picked, options, budget, held=held)
    judged = _judged(picked, stretches, queue.id.queue_id)
    at_coda = np.concatenate([faults == Fault.CODA for faults, _ in judged])
    if at_coda.any():
        picked = picked.past_codas(at_coda)
        stretches, checks = await _read(queue, flight, picked, options, budget, held=held)
        judged = _judged(picked, stretches, queue.id.queue_id)
    found: list[_Records] = []
    for stretch, (faults, headers) in zip(stretches, judged, strict=True):
        part = picked.part(stretch.first, stretch.stop)
        records = await _checked(queue, part, stretch, faults, headers, checks=checks)
        if len(records.starts) or not found:
            found.append(records)
        else:
            found[-1] = found[-1]._replace(fault=records.fault)
        if records.fault is not None:
            doubt()
            break
    return found


def _judged(
    picked: _Picked, stretches: Sequence[Stretch], queue_id: int
) -> list[tuple[Faults, NDArray[np.void]]]:
    return [
        picked.part(one.first, one.stop).judge(one.data, one.starts, queue_id) for one in stretches
    ]


async def _checked(
    queue: TierQueue,
    part: _Picked,
    stretch: Stretch,
    faults: Faults,
    headers: NDArray[np.void],
    *,
    checks: ExtentChecks | None,
) -> _Records:
    """Return the leading valid messages of a stretch. `checks` None: only headers are verified.

    Bodies are compared in sound extents, too: they may have rotted before the extent was published.
    A damaged extent counts if no message in it has a fault of its own.
    """
    data, starts = stretch.data, stretch.starts
    good, fault = leading_good(faults)
    reason = fault.reason
    contents = None
    if checks is not None:
        if len(headers) < len(starts):  # some records lie outside `data`
            headers = headers_at(data, starts[:good], PREFIX_DTYPE)
        topic, sizes = queue.id.topic.encode(), part.sizes[:good]
        contents = await _verified(data, starts[:good], sizes, headers[:good], topic)
        good, reason = contents.good, contents.reason or reason
        for extent in checks.damaged:
            row = part.damaged_row(extent, good)
            if row is not None:
                good, reason = row, extent.reason
                contents = contents._replace(good=row, properties_at=contents.properties_at[:row])
                break
    error = None
    if reason:
        error = Corrupt(reason, f"{queue.id}/COMMIT_LOG", int(part.positions[good]))
    return _Records(part.leading(good), data, starts[:good], contents, error)


async def _verified(
    data: Buffer,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    headers: NDArray[np.void],
    topic: bytes,
) -> Contents:
    """Verify as `verify_contents`, and run other tasks now and then: 2 ms are 4,096 records."""
    turns = np.cumsum(sizes) // VERIFIED_BYTES + np.arange(len(sizes)) // VERIFIED_TOGETHER
    edges = [0, *(np.flatnonzero(np.diff(turns)) + 1).tolist(), len(sizes)]
    found: list[Contents] = []
    for first, stop in pairwise(edges):
        if found:
            await give_way()
        one = slice(first, stop)
        found.append(verify_contents(data, starts[one], sizes[one], headers[one], topic=topic))
        if found[-1].reason:
            break
    shape = found[0].shape if all(one.shape == found[0].shape for one in found) else None
    properties_at = np.concatenate([one.properties_at for one in found])
    return Contents(sum(one.good for one in found), found[-1].reason, shape, properties_at)


async def _read(
    queue: TierQueue,
    flight: Flight,
    picked: _Picked,
    options: FetcherOptions,
    budget: ReadBudget,
    *,
    held: WholeRead | None,
) -> tuple[list[Stretch], ExtentChecks | None]:
    """Read the bytes of the picked messages, at least one. Uses `held` if it has them."""
    is_one = not options.cache_enabled
    if held is not None and held.has(picked.positions, picked.sizes):
        stretches = stretches_of(
            [held.span], [held.pieces], picked.positions, picked.sizes, is_one=is_one
        )
        return stretches, held.checks
    ranges = plan_reads(
        picked.positions,
        picked.sizes,
        gap_bytes_max=options.gap_bytes_max,
        read_bytes_max=2 * options.run_bytes_max,
    )
    checks = _checks_for(flight, options)
    asked_bytes = _asked_bytes(flight, sum(part.length for part in ranges), options)
    granted = await budget.acquire(flight, asked_bytes)
    try:
        pieces = await _log(queue, flight, ranges, picked, checks)
    finally:
        budget.release(granted)
    stretches = stretches_of(ranges, pieces, picked.positions, picked.sizes, is_one=is_one)
    return stretches, checks


async def _to_extent_end(queue: TierQueue, picked: _Picked) -> _Picked:
    """End a sequential read with the last extent that ends in it. The next one begins there.

    Not if neither this read nor the next one has an extent as a whole. The next one may be twice as
    long.
    """
    if not picked.has_all or not len(picked.offsets):
        return picked
    start, end = int(picked.positions[0]), int(picked.positions[-1] + picked.sizes[-1])
    try:
        ends = await queue.extent_ends(ByteRange(start, end + int(NEXT_SHARE_MAX * (end - start))))
    except (OutOfRange, Corrupt):
        return picked  # reading the bytes raises it
    inside = [position for position in ends if position <= end]
    if not inside or inside[-1] == end:
        return picked
    after = ends[len(inside)] if len(inside) < len(ends) else None
    fits = after is not None and after - inside[-1] <= NEXT_SHARE_MAX * (end - start)
    if len(inside) == 1 and not fits:
        return picked
    return picked.leading(int(np.searchsorted(picked.positions, inside[-1])))


async def _log(
    queue: TierQueue,
    flight: Flight,
    ranges: list[ByteRange],
    picked: _Picked,
    checks: ExtentChecks | None,
) -> list[list[Buffer]]:
    """Read ranges of the log. Raise `Corrupt` if published units point outside the log."""
    try:
        pieces = await queue.log_pieces(ranges, checks)
    except NotFound:
        raise
    except OutOfRange as error:
        if queue.min_offset <= flight.start:
            path, position = f"{queue.id}/COMMIT_LOG", int(picked.positions[0])
            raise Corrupt("units point outside the published log", path, position) from error
        raise
    if [sum(map(len, part)) for part in pieces] != [part.length for part in ranges]:
        raise Corrupt("the log's bytes are short", f"{queue.id}/COMMIT_LOG", ranges[0].start)
    return pieces
