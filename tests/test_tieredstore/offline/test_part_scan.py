"""Parts say by their records alone which run of which queue lies where in them."""

from itertools import groupby, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from container.record.batch import encode_units
from container.record.header import layout_of
from container.record.message import StoredMessage
from provider.errors import Corrupt
from provider.stores.packed_segments import PartName
from tests.support.messages import make_message
from tests.support.scanned_log import MemorySource
from tieredstore.offline.jobs import part_scan
from tieredstore.offline.jobs.metadata_records import HOLE_BYTES_MAX, put_together, with_filler
from tieredstore.offline.jobs.part_scan import PartRun, runs_of_part, split_by_checksums
from tieredstore.offline.scan import log_window
from tieredstore.offline.scan.split import LogPiece

A, B, LONG = QueueId("A", 0), QueueId("B", 7), QueueId("Ü" * 100, 1)


def records(
    queue: QueueId, first: int, count: int, position: int, *, body: bytes = b"body"
) -> list[bytes]:
    """Records of one queue that follow one another from a log position on."""
    found: list[bytes] = []
    for offset in range(first, first + count):
        message: StoredMessage = make_message(
            offset,
            topic=queue.topic,
            queue_id=queue.queue_id,
            body=body * (offset % 5),
            physical_offset=position,
        )
        found.append(message.encode())
        position += len(found[-1])
    return found


def units(count: int) -> bytes:
    column = np.arange(1, count + 1, dtype=np.int64)
    return encode_units(0xDAA320A7 * column, 100 * column, column).tobytes()


def scanned(part: bytes) -> list[tuple[QueueId, PartRun]]:
    return list(runs_of_part(MemorySource({"p": part}), "p", len(part)))


@given(
    seed=st.integers(0, 2**32), cuts=st.integers(1, 12), window=st.sampled_from([300, 999, 1 << 20])
)
def test_the_runs_of_a_part_are_found(seed: int, cuts: int, window: int) -> None:
    rng = Random(seed)
    part, wanted = b"", list[tuple[QueueId, PartRun]]()
    for _ in range(cuts):
        kind = rng.choice([A, B, LONG, None])
        if kind is None:
            part += units(rng.randrange(1, 30))
            continue
        first, count = rng.randrange(1000), rng.randrange(1, 8)
        position = rng.randrange(1 << 40)
        raw = b"".join(records(kind, first, count, position))
        wanted.append((kind, PartRun(position, len(raw), first, count, "p", len(part))))
        part += raw
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(part_scan, "WINDOW_BYTES", window)
        patched.setattr(log_window, "WINDOW_BYTES", window)
        patched.setattr(part_scan, "NEAR_BYTES", min(window, part_scan.NEAR_BYTES))
        assert scanned(part) == wanted


def test_records_in_bodies_are_none() -> None:
    inner = records(B, 5, 1, 0)[0]
    raw = b"".join(records(A, 1, 6, 100, body=inner))
    assert scanned(raw + units(6)) == [(A, PartRun(100, len(raw), 1, 6, "p", 0))]


def test_a_damaged_record_parts_two_runs() -> None:
    one = records(A, 0, 9, 0)
    raw = bytearray(b"".join(one))
    ends = [0]
    for record in one:
        ends.append(ends[-1] + len(record))
    raw[ends[4] + 6] ^= 8
    assert [(run.first_offset, run.records, run.position) for _, run in scanned(bytes(raw))] == [
        (0, 4, 0),
        (5, 4, ends[5]),
    ]


@pytest.mark.parametrize("window", [300, 1 << 20])
def test_a_run_is_split_where_its_checksums_begin_or_end_to_fail(window: int) -> None:
    one = records(A, 3, 12, 700)
    raw = bytearray(b"".join(one))
    ends = np.cumsum([0, *map(len, one)]).tolist()
    for index in (0, 4, 5, 11):
        raw[ends[index] + layout_of(0).body + 1] ^= 1
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_window, "WINDOW_BYTES", window)
        patched.setattr(part_scan, "WINDOW_BYTES", window)
        patched.setattr(part_scan, "NEAR_BYTES", min(window, part_scan.NEAR_BYTES))
        ((_, whole),) = scanned(bytes(raw))
        parts = list(split_by_checksums(MemorySource({"p": bytes(raw)}), whole))
    joined_by_kind = [
        (kind, sum(one.records for one in group))
        for kind, group in (
            (kind, list(group)) for kind, group in groupby(parts, key=lambda one: one.is_sound)
        )
    ]
    assert joined_by_kind == [(False, 1), (True, 3), (False, 2), (True, 5), (False, 1)]
    assert [part.object_offset for part in parts] == [part.position - 700 for part in parts]
    assert [part.first_offset - 3 for part in parts] == [
        ends.index(part.object_offset) for part in parts
    ]


@pytest.mark.parametrize("part", [b"", b"\0", bytes(100_000), b"\xda\xa3\x20\xa7" * 999])
def test_a_part_without_records_has_no_run(part: bytes) -> None:
    assert scanned(part) == []


def test_a_record_that_is_cut_off_is_none() -> None:
    raw = b"".join(records(A, 0, 3, 0))
    assert [run.records for _, run in scanned(raw[:-1])] == [2]


def name(epoch: int, letter: str) -> str:
    return str(PartName(epoch, letter * 32))


def run(epoch: int, letter: str, start: int, end: int) -> PartRun:
    return PartRun(start, end - start, start // 10, (end - start) // 10, name(epoch, letter), 1000)


def joined(
    *runs: PartRun,
    differ: set[str] = frozenset(),  # type: ignore[assignment]
) -> list[tuple[str, int, int]]:
    """Letter, start and end of what a log is put together of."""

    def are_same(one: LogPiece, other: LogPiece) -> bool:
        letters = {one.object_name[-1], other.object_name[-1]}
        return letters <= differ or not letters & differ

    found = put_together(runs, are_same, path="A/0")
    assert all(before.end <= after.position for before, after in pairwise(found))
    for one in found:
        whole = next(other for other in runs if other.object_name == one.object_name)
        assert one.object_offset - one.position == whole.object_offset - whole.position
    return [(one.object_name[-1], one.position, one.end) for one in found]


def test_what_was_merged_lies_beside_what_it_was_made_of() -> None:
    a, b, merged = run(1, "a", 0, 100), run(1, "b", 100, 200), run(2, "c", 0, 200)
    assert joined(a, b, merged) == [("c", 0, 200)]
    assert joined(a, b, run(1, "c", 0, 150)) == [("c", 0, 150), ("b", 150, 200)]
    assert joined(a, b) == [("a", 0, 100), ("b", 100, 200)]


def test_what_a_newer_owner_wrote_there_ends_the_log_of_the_older_ones() -> None:
    cut, tail = run(2, "a", 100, 200), run(1, "b", 200, 300)
    newer = run(3, "c", 100, 150)
    old = run(1, "d", 0, 100)
    assert joined(old, cut, tail, newer, differ={"c"}) == [("d", 0, 100), ("c", 100, 150)]
    kept = run(3, "e", 150, 220)
    assert joined(old, cut, tail, newer, kept, differ={"c", "e"}) == [
        ("d", 0, 100),
        ("c", 100, 150),
        ("e", 150, 220),
    ]


def test_two_versions_of_one_epoch_are_not_guessed_at() -> None:
    with pytest.raises(Corrupt, match="two versions of its log stand in parts of epoch 1") as told:
        joined(run(1, "a", 0, 100), run(1, "b", 50, 200), differ={"b"})
    assert told.value.position == 50


def test_holes_are_filled_and_absurd_ones_are_not() -> None:
    two = [LogPiece(0, 10, "a", 0), LogPiece((9 << 20) + 10, 10, "a", 10)]
    filled = with_filler(two, "zeros", path="A/0")
    assert [(one.position, one.length, one.object_name) for one in filled] == [
        (0, 10, "a"),
        (10, 4 << 20, "zeros"),
        ((4 << 20) + 10, 4 << 20, "zeros"),
        ((8 << 20) + 10, 1 << 20, "zeros"),
        ((9 << 20) + 10, 10, "a"),
    ]
    assert {one.object_offset for one in filled[1:4]} == {0}
    with pytest.raises(Corrupt, match="bytes of its log are in no part"):
        with_filler([two[0], LogPiece(HOLE_BYTES_MAX + 11, 10, "a", 10)], "", path="A/0")
