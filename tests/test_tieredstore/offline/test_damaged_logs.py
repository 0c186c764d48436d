"""Damage in a log, kind by kind: what is kept, what is told, and that splits still agree."""

from random import Random

import pytest

from container.names.queue_id import QueueId
from tests.support.messages import make_message
from tests.support.scanned_log import Log, Scanned, log_of, scanned
from tieredstore.offline.scan.log_scan import ANOTHER_BODY
from tieredstore.offline.scan.split import MISSING_BYTES, LogPiece, Split, where_not_met

QUEUE = QueueId("T", 3)
COUNT = 400
SPLIT = 7_000
HEADER_BITS = [(2, 3), (3, 0), (0, 1), (4, 7), (7, 0), (28, 5), (15, 2)]
"""Byte and bit: of the size, the magic, the own position, the queue id."""


@pytest.fixture
def log() -> Log:
    rng = Random(3)
    return log_of(
        [
            make_message(n, queue_id=3, topic="T", body=rng.randbytes(rng.randint(0, 300)))
            for n in range(COUNT)
        ],
        QUEUE,
        base=1 << 20,
    )


def offsets_lost(found: Scanned) -> list[tuple[int, int]]:
    """Ranges of queue offsets between the neighbours of each gap."""
    return [
        (-1 if gap.offset_before is None else gap.offset_before + 1, gap.offset_behind or COUNT)
        for gap in found.gaps
    ]


def unsplit(log: Log) -> Scanned:
    return scanned(log, [log.split()])


@pytest.mark.parametrize(
    ("place", "bit"), [(2, 3), (3, 0), (0, 1), (4, 7), (7, 0), (28, 5), (15, 2)]
)
def test_a_flipped_bit_of_the_header_costs_one_message(log: Log, place: int, bit: int) -> None:
    start, end = log.record(123)
    log.raw[start + place] ^= 1 << bit
    found = unsplit(log)
    assert len(found.records) == COUNT - 1
    assert [(gap.position - log.base, gap.end - log.base) for gap in found.gaps] == [(start, end)]
    assert offsets_lost(found) == [(123, 124)]
    again = scanned(log, log.splits(SPLIT))
    assert (again.records, where_not_met(again.reports)) == (found.records, [])


def test_zeros_are_one_gap_with_the_offsets_that_they_hit(log: Log) -> None:
    start, end = log.starts[100] + 20, log.starts[200] + 4
    log.raw[start:end] = bytes(end - start)
    found = unsplit(log)
    assert len(found.records) == COUNT - 101
    assert offsets_lost(found) == [(100, 201)]
    again = scanned(log, log.splits(SPLIT))
    assert again.records == found.records
    assert where_not_met(again.reports) == []
    assert [(gap.position, gap.length) for gap in again.gaps] == [
        (gap.position, gap.length) for gap in found.gaps
    ]


def test_an_object_that_was_cut_off_keeps_all_whole_messages(log: Log) -> None:
    published, cut = log.split(), log.record(380)[1] - 50
    del log.raw[cut:]
    found = scanned(log, [published], keeps_missing=True)
    assert len(found.records) == 380
    (gap,) = found.gaps
    assert (gap.reason, gap.position - log.base) == (MISSING_BYTES, log.starts[380])
    assert gap.end == published.end


def test_splits_of_which_the_first_message_is_broken_do_not_meet_and_one_scan_finds_it(
    log: Log,
) -> None:
    start, end = log.record(200)
    log.raw[start + 5] ^= 16
    border = log.base + start
    split = scanned(log, [log.split(log.base, border), log.split(border)])
    (not_met,) = where_not_met(split.reports)
    assert (not_met.ended, not_met.began) == (border, log.base + end)
    assert split.gaps == [], "neither of them can know"
    found = unsplit(log)
    assert (len(found.records), offsets_lost(found)) == (COUNT - 1, [(200, 201)])


def forged(log_base: int) -> tuple[Log, int]:
    """A log whose record 5 holds a record that lies where it says, and where that is in the log."""
    inner: list[int] = []

    def body_at(number: int, position: int) -> bytes:
        if number != 5:
            return b"x" * 300
        inner.append(position + 88 + 40)
        fake = make_message(6, queue_id=3, topic="T", body=b"forged", physical_offset=inner[0])
        return b"y" * 40 + fake.encode() + b"z" * 40

    log = log_of(
        [make_message(n, queue_id=3, topic="T") for n in range(20)], QUEUE, log_base, body_at
    )
    return log, inner[0]


def test_a_forged_message_at_the_beginning_of_a_split_is_noticed() -> None:
    log, inner = forged(4096)
    honest = unsplit(log)
    assert len(honest.records) == 20
    split = scanned(log, [log.split(log.base, inner - 3), log.split(inner - 3)])
    assert inner in [at for at, _ in split.records], "the second split took it"
    (not_met,) = where_not_met(split.reports)
    assert (not_met.began, not_met.ended) == (inner, log.base + log.starts[6])


def test_a_forged_message_does_not_mislead_a_split_that_follows_the_chain() -> None:
    log, inner = forged(4096)
    anchored = [log.split(log.base, inner - 3), log.split(inner - 3, anchor=log.base)]
    found = scanned(log, anchored)
    assert found.records == unsplit(log).records
    assert where_not_met(found.reports) == []


def test_a_flipped_bit_of_a_body_is_seen_only_where_bodies_are_verified(log: Log) -> None:
    number = next(n for n in range(COUNT) if log.record(n)[1] - log.record(n)[0] > 250)
    log.raw[log.starts[number] + 100] ^= 1
    assert unsplit(log).gaps == []
    found = scanned(log, [log.split()], verify_bodies=True)
    assert len(found.records) == COUNT - 1
    (gap,) = found.gaps
    assert (gap.reason, gap.offset_before, gap.offset_behind) == (
        ANOTHER_BODY,
        number - 1,
        number + 1,
    )


def test_bytes_lost_in_the_middle_are_told_as_a_shift(log: Log) -> None:
    published = log.split()
    del log.raw[log.starts[150] + 30 : log.starts[150] + 130]
    found = scanned(log, [published], keeps_missing=True)
    assert len(found.records) == 150
    (gap,) = found.gaps
    assert (gap.position - log.base, gap.end) == (log.starts[150], published.end)
    assert gap.shift == -100
    assert gap.shifted == COUNT - 151
    assert "-100" in str(gap)


def test_much_damage_costs_no_more_than_a_look_at_each_place(log: Log) -> None:
    for number in range(0, COUNT, 2):
        log.raw[log.starts[number] + 6] ^= 4
    found = unsplit(log)
    assert len(found.records) == len(found.gaps) == COUNT // 2
    assert scanned(log, log.splits(SPLIT)).records == found.records


def test_a_tier_whose_extents_are_known_confines_damage_to_one_of_them(log: Log) -> None:
    published = log.split()
    del log.raw[log.starts[150] + 30 : log.starts[150] + 130]
    log.raw[log.starts[200] - 100 : log.starts[200] - 100] = bytes(100)
    ends = [log.starts[100], log.starts[200], log.starts[300], published.limit - log.base]
    piece = LogPiece(log.base, published.limit - log.base, "segment", 0)
    splits = [
        Split(QUEUE, log.base + a, log.base + b, log.base + a, log.base + b, (piece,))
        for a, b in zip([0, *ends], ends, strict=False)
    ]
    found = scanned(log, splits)
    assert where_not_met(found.reports) == []
    assert {gap.end for gap in found.gaps} == {log.base + log.starts[200]}
    assert len(found.records) == COUNT - 50
