"""Units and keys cross a shuffle in small pieces of few bytes, and are the same behind it."""

import tracemalloc
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from container.names.rocketmq import INT64_MAX
from tests.bench.scan_data import splits_of, write_logs
from tieredstore.offline.jobs import derived
from tieredstore.offline.jobs.audit_job import AuditTask, Covered, audit_item
from tieredstore.offline.jobs.derived import IndexPart, index_parts, keys_within, labels_of
from tieredstore.offline.jobs.engine import Piece
from tieredstore.offline.jobs.rebuild_job import (
    HELD_ROWS_MAX,
    INDEX,
    ROWS_MAX,
    UNITS,
    HeldRows,
    RebuildTask,
    Rows,
    keys_in,
    pack,
    rebuild_item,
    rows_of,
    units_in,
    unknown_end,
    unpack,
)
from tieredstore.offline.scan.log_scan import LogScan
from tieredstore.offline.scan.sources import source_of
from tieredstore.offline.scan.split import ALL_OFFSETS

_NUMBERS = st.integers(-INT64_MAX - 1, INT64_MAX)


@given(
    st.integers(1, 5).flatmap(
        lambda rows: st.lists(
            st.lists(st.one_of(st.integers(-300, 300), _NUMBERS), min_size=rows, max_size=rows),
            min_size=1,
            max_size=4,
        )
    )
)
def test_packed_columns_are_the_same_again(rows: list[list[int]]) -> None:
    columns = [np.array(column, np.int64) for column in rows]
    packed = pack(columns)
    assert [found.tolist() for found in unpack(packed, len(columns))] == rows
    assert rows_of(packed) == len(rows[0])
    assert packed == pack([column.astype(">i8") for column in columns])


@pytest.mark.parametrize(
    ("span", "width"), [(0, 0), (1, 1), (255, 1), (256, 2), (65_536, 4), (1 << 32, 8)]
)
def test_a_column_takes_as_few_bytes_as_it_needs(span: int, width: int) -> None:
    column = np.array([-7, -7 + span, -7], np.int64)
    assert len(pack([column])) == 8 * 3 + 3 * width


def test_rows_that_must_follow_are_cut_where_they_do_not() -> None:
    rng, rows = Random(7), Rows("T")
    orders = np.array([*range(5, 9), *range(20, 23), 22, *range(23, 26), 30, 32, 31, 33])
    pieces: list[Piece] = []
    at = 0
    while at < len(orders):
        some = orders[at : at + rng.randint(1, 4)]
        pieces += rows.add(some, [some], must_follow=True)
        at += len(some)
    pieces += rows.rest()
    assert [*rows.rest()] == []
    found = [(piece.order, unpack(piece.payload, 1)[0].tolist()) for piece in pieces]
    apart = [(one, [one]) for one in (30, 32, 31, 33)]
    assert found == [(5, [5, 6, 7, 8]), (20, [20, 21, 22]), (22, [22, 23, 24, 25]), *apart]


def test_no_piece_has_more_than_so_many_rows() -> None:
    orders = np.arange(2 * ROWS_MAX + 7)
    for must_follow in (True, False):
        rows = Rows("T")
        pieces = [*rows.add(orders[:9], [orders[:9]], must_follow=must_follow)]
        pieces += rows.add(orders[9:], [orders[9:]], must_follow=must_follow)
        pieces += rows.rest()
        assert [piece.order for piece in pieces] == sorted(piece.order for piece in pieces)
        parts = [unpack(piece.payload, 1)[0] for piece in pieces]
        assert max(map(len, parts)) <= ROWS_MAX
        assert np.concatenate(parts).tolist() == orders.tolist()
    assert [*Rows("T").add(orders[:0], [orders[:0]])] == []
    gaps = orders * 2
    pieces = [*Rows("T").add(gaps[:3], [gaps[:3]], must_follow=True)]
    assert [piece.order for piece in pieces] == [0, 2]


@pytest.mark.slow
def test_a_split_of_any_length_gives_pieces_of_bounded_length(tmp_path: Path) -> None:
    messages = write_logs(tmp_path, 100, 64 << 20)
    held = 0
    for split in splits_of(tmp_path, 1 << 40):
        task = RebuildTask(
            split, 3, (unknown_end(0, 1 << 30),), (IndexPart("f", 0, INT64_MAX),), 4 << 20
        )
        pieces = [*rebuild_item(task)]
        units = [piece for piece in pieces if piece.target.startswith(UNITS)]
        keys = [piece for piece in pieces if piece.target.startswith(INDEX)]
        assert len(pieces) - len(units) - len(keys) == 1
        assert max(len(piece.payload) for piece in units) <= 12 * ROWS_MAX
        assert max(len(piece.payload) for piece in keys) <= 14 * ROWS_MAX
        made, times = units_in(sorted(units, key=lambda piece: piece.order), 1_000)
        items = keys_in(keys)
        held += len(made)
        assert made["position"][0] == split.start
        assert (np.diff(made["position"]) == made["size"][:-1]).all()
        began = times[0][0]
        assert times == [
            (began + at, began + min(at + 1_000, len(made)) - 1)
            for at in range(0, len(made), 1_000)
        ]
        assert set(items["topic_id"].tolist()) == {3}
        assert set(items["queue_id"].tolist()) == {split.queue.queue_id}
        assert np.isin(items["position"], made["position"]).all()
        assert (items["ordinal"] == 0).all()
    assert held == messages


def test_a_mapper_holds_few_rows_for_many_targets_and_nothing_else_for_them() -> None:
    rows, given, held = HeldRows(), 0, 0
    tracemalloc.start()
    for number in range(1_000):
        columns = [np.arange(100_000), np.arange(100_000)]
        mine = slice(number, number + 1_000)
        some = [column[mine] for column in columns]
        pieces = [*rows.add(f"{number}", some[0], some)]
        given += sum(rows_of(piece.payload) for piece in pieces)
        held = max(held, 1_000 * (number + 1) - given)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held <= HELD_ROWS_MAX
    assert peak < 4 * 8 * HELD_ROWS_MAX
    assert given + sum(rows_of(piece.payload) for piece in rows.rest()) == 1_000_000


def test_keys_are_the_same_however_many_are_found_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_logs(tmp_path, 10, 256 << 10, short_keys=9, queues=1)
    (split,) = splits_of(tmp_path, 1 << 40)
    source = source_of(split.place)

    def keys(span: tuple[int, int]) -> tuple[list[int], list[int], int]:
        found: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        for records in LogScan(source, split):
            for some, keys in keys_within(records, labels_of(records), split.queue.topic, span):
                found.append((some.queue_offsets[keys.messages], keys.hashes))
        offsets, hashes = map(np.concatenate, zip(*found, strict=True))
        return offsets.tolist(), hashes.tolist(), len(found)

    for span in (ALL_OFFSETS, (100, 900)):
        *wanted, parts = keys(span)
        with monkeypatch.context() as patched:
            patched.setattr(derived, "KEY_BYTES_AT_ONCE", 1_000)
            *found, several = keys(span)
        assert found == wanted
        assert several > 10 * parts
        assert min(wanted[0]) == span[0]
    source.close()


@pytest.mark.slow
@pytest.mark.parametrize("job", [RebuildTask, AuditTask])
def test_a_mapper_holds_as_little_of_a_long_split_of_many_keys(
    tmp_path: Path, job: type[RebuildTask] | type[AuditTask]
) -> None:
    peaks: list[int] = []
    for name, size in (("short", 4 << 20), ("long", 10 << 20)):
        write_logs(tmp_path / name, 10, size, short_keys=64, queues=1)
        (split,) = splits_of(tmp_path / name, 1 << 40)
        if job is RebuildTask:
            parts = index_parts([split.end - split.start], epoch=1, first_number=1)
            pieces = rebuild_item(RebuildTask(split, 3, (unknown_end(0, 1 << 30),), (*parts,)))
        else:
            covered = (Covered("f", 0, INT64_MAX),)
            pieces = audit_item(AuditTask(split, 3, (), (), covered, decompresses=False))
        tracemalloc.start()
        count = sum(piece.target.startswith(INDEX) for piece in pieces)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert count > (size >> 20)
    assert peaks[1] < 1.1 * peaks[0]
    assert max(peaks) < 130_000_000
