"""Following the records of a log: split anywhere, each is found exactly once."""

import tracemalloc
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from container.errors import BytesMissing
from container.names.queue_id import QueueId
from container.record.header import Coda
from container.record.message import StoredMessage
from provider.errors import Corrupt
from tests.support.messages import make_message, queue_records
from tests.support.scanned_log import OBJECT, Log, MemorySource, log_of, scanned
from tieredstore.offline.scan.log_scan import BLANK, QUEUE_OFFSET_MAX, LogScan
from tieredstore.offline.scan.log_window import WINDOW_BYTES
from tieredstore.offline.scan.split import LogGap, LogPiece, ScanReport, Split, where_not_met

QUEUE = QueueId("T", 3)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """Any records of one queue: both versions, both kinds of host; perhaps a coda at the end."""
    records = draw(queue_records(count_max=12))
    messages = [StoredMessage.decode(raw, path="", position=0) for raw in records]
    queue = QueueId(messages[0].topic, messages[0].queue_id)
    beyond = max(0, messages[-1].queue_offset - QUEUE_OFFSET_MAX)  # no unit has a place there
    messages = [one._replace(queue_offset=one.queue_offset - beyond) for one in messages]
    base = draw(st.sampled_from([0, 1, 1 << 30, 1 << 60]))
    log = log_of([message._replace(properties=b"") for message in messages], queue, base)
    if draw(st.booleans()):
        log.raw += Coda(7).encode()
    return log


@pytest.mark.parametrize("offset", [-1, QUEUE_OFFSET_MAX + 1, -(2**63), 2**63 - 1])
def test_a_message_at_an_offset_that_no_queue_has_is_a_gap(offset: int) -> None:
    offsets = [0, QUEUE_OFFSET_MAX, offset, 5]
    messages = [make_message(0, **QUEUE._asdict())._replace(queue_offset=one) for one in offsets]
    log = log_of(messages, QUEUE)
    found = scanned(log, log.splits(1 << 20))
    assert [place for place, _ in found.records] == [log.starts[number] for number in (0, 1, 3)]
    (gap,) = found.gaps
    assert (gap.position, gap.reason) == (log.starts[2], "impossible queue offset")


def whole(log: Log) -> list[tuple[int, bytes]]:
    """All records of an undamaged log, cut by the places that were noted."""
    ends = [*log.starts[1:], len(log.raw)]
    if log.raw.endswith(Coda(7).encode()):
        ends[-1] -= Coda.SIZE
    return [
        (log.base + start, bytes(log.raw[start:end]))
        for start, end in zip(log.starts, ends, strict=True)
    ]


@pytest.mark.slow
@settings(max_examples=60)
@given(log=logs(), length=st.integers(1, 700), anchored=st.booleans())
def test_every_way_of_splitting_finds_each_record_once(
    *, log: Log, length: int, anchored: bool
) -> None:
    found = scanned(log, log.splits(length, anchored=anchored))
    assert found.records == whole(log)
    assert found.gaps == []
    assert where_not_met(found.reports) == []
    assert sum(report.records for report in found.reports) == len(log.starts)


@given(st.integers(0, 2**32), st.integers(200, 900))
@settings(max_examples=30)
def test_bodies_that_hold_other_records_mislead_nobody(seed: int, length: int) -> None:
    rng = Random(seed)
    earlier: list[bytes] = []

    def body_at(number: int, position: int) -> bytes:
        record = make_message(
            number + rng.choice([0, 1, 5]),
            topic=QUEUE.topic,
            queue_id=QUEUE.queue_id,
            body=rng.randbytes(rng.randint(0, 50)),
            physical_offset=rng.choice([0, position, position + 1]),  # never where it lies itself
        ).encode()
        earlier.append(record)
        return rng.randbytes(rng.randint(0, 9)) + rng.choice(earlier) + record

    log = log_of(
        [make_message(n, topic=QUEUE.topic, queue_id=QUEUE.queue_id) for n in range(40)],
        QUEUE,
        body_at=body_at,
    )
    found = scanned(log, log.splits(length))
    assert found.records == whole(log)
    assert where_not_met(found.reports) == []


def test_offsets_and_times_choose_among_what_a_split_owns() -> None:
    log = log_of([make_message(n, queue_id=3, topic="T") for n in range(50)], QUEUE)
    first = make_message(0).store_timestamp
    split = log.split()
    narrow = Split(
        QUEUE, split.start, split.end, split.anchor, split.limit, split.pieces,
        offsets=(10, 30), times_ms=(first + 20, first + 45),
    )  # fmt: skip
    found = scanned(log, [narrow])
    assert [at for at, _ in found.records] == log.starts[20:30]
    assert found.reports[0].records == 50


def test_a_blank_that_is_no_coda_at_the_end_is_a_gap() -> None:
    log = log_of([make_message(n, queue_id=3, topic="T") for n in range(4)], QUEUE)
    log.raw[log.starts[2] : log.starts[2]] = Coda(7).encode()
    found = scanned(log, [log.split()])
    assert len(found.records) == 2
    assert [(gap.position, gap.reason) for gap in found.gaps] == [(log.starts[2], BLANK)]


def test_a_record_longer_than_the_window_is_read_whole() -> None:
    big = make_message(1, queue_id=3, topic="T", body=b"x" * (2 * WINDOW_BYTES + 17))
    small = [make_message(n, queue_id=3, topic="T") for n in (0, 2)]
    log = log_of([small[0], big, small[1]], QUEUE)
    found = scanned(log, log.splits(WINDOW_BYTES))
    assert found.records == whole(log)
    assert where_not_met(found.reports) == []


@pytest.mark.parametrize("left", range(12))
def test_a_record_that_begins_in_the_last_bytes_of_a_window_is_found(left: int) -> None:
    small = make_message(1, queue_id=3, topic="T")
    empty = make_message(0, queue_id=3, topic="T", body=b"")
    body = bytes(WINDOW_BYTES - left - len(empty.encode()))
    big = make_message(0, queue_id=3, topic="T", body=body)
    log = log_of([big, small, small._replace(queue_offset=2)], QUEUE)
    assert log.starts[1] == WINDOW_BYTES - left
    found = scanned(log, [log.split()])
    assert found.gaps == []
    assert found.records == whole(log)


def test_a_scan_holds_one_window_however_long_its_log_is() -> None:
    count, body = 400, bytes(100_000)
    log = log_of((make_message(n, queue_id=3, topic="T", body=body) for n in range(count)), QUEUE)
    source, split = log.source(), log.split()
    tracemalloc.start()
    try:
        records = sum(len(chunk.starts) for chunk in LogScan(source, split))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert records == count
    assert peak < 3 * WINDOW_BYTES


def test_a_split_reads_little_more_than_itself() -> None:
    log = log_of(
        [make_message(n, queue_id=3, topic="T", body=bytes(9000)) for n in range(900)], QUEUE
    )
    length = 1 << 20
    for split in log.splits(length):
        source = log.source()
        list(LogScan(source, split))
        assert sum(read.length for read in source.reads) < length + (5 << 20)


def test_pieces_that_the_storage_lost_are_gaps_of_their_own() -> None:
    log = log_of([make_message(n, queue_id=3, topic="T") for n in range(30)], QUEUE)
    cut = log.starts[10], log.starts[20]
    bounds = [0, *cut, len(log.raw)]
    pieces = tuple(LogPiece(a, b - a, f"part-{a}", 5) for a, b in pairwise(bounds))
    objects = {
        piece.object_name: b"other" + log.raw[piece.position : piece.end] for piece in pieces
    }
    del objects[pieces[1].object_name]
    split = Split(QUEUE, 0, len(log.raw), 0, len(log.raw), pieces)
    gaps, report = list[LogGap](), ScanReport(split)
    scan = LogScan(
        MemorySource(objects), split, report=report, on_gap=gaps.append, keeps_missing=True
    )
    assert sum(len(chunk.starts) for chunk in scan) == 20
    assert [(gap.position, gap.end) for gap in report.gaps] == [cut]
    assert (report.gaps[0].offset_before, report.gaps[0].offset_behind) == (9, 20)
    assert gaps[0].is_missing
    with pytest.raises(BytesMissing, match=f"part-{cut[0]}"):
        list(LogScan(MemorySource(objects), split, on_gap=gaps.append))


def test_without_anybody_who_is_told_the_first_gap_is_an_error_with_its_place() -> None:
    log = log_of([make_message(n, queue_id=3, topic="T") for n in range(5)], QUEUE, base=1000)
    log.raw[log.starts[3] + 4] ^= 1
    with pytest.raises(Corrupt) as caught:
        list(LogScan(log.source(), log.split()))
    assert (caught.value.path, caught.value.position) == (OBJECT, log.starts[3])


@pytest.mark.parametrize("change", [{"end": 0}, {"limit": 5}, {"anchor": 9000}])
def test_what_is_no_split_is_refused(change: dict[str, int]) -> None:
    log = log_of([make_message(n, queue_id=3, topic="T") for n in range(5)], QUEUE)
    with pytest.raises(ValueError, match="not a split"):
        log.split(0, **change)
