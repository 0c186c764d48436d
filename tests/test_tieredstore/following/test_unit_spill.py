"""Units that wait lie in a database: what is put in comes out, and little of it is in memory."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record.batch import encode_units
from container.record.unit import Units
from provider.errors import Closed
from tieredstore.following.log_reader.unit_spill import WaitingUnits


def units_at(first: int, count: int) -> Units:
    """Units that tell which offset they are of."""
    offsets = np.arange(first, first + count)
    return encode_units(offsets * 100, np.full(count, 100), offsets)


@given(
    lengths=st.lists(st.integers(1, 2500), min_size=1, max_size=6),
    start=st.integers(0, 5000),
    count=st.integers(1, 5000),
    dropped=st.integers(0, 5000),
)
def test_what_is_kept_is_found_and_only_whole_runs_are_dropped(
    lengths: list[int], start: int, count: int, dropped: int
) -> None:
    kept = WaitingUnits()
    end = sum(lengths)
    at = 0
    for length in lengths:
        kept.add([(1, at, units_at(at, length)), (2, at, units_at(at, 1))])
        at += length
    found = kept.units(1, start, start + count)
    assert found["tag_hash"].tolist() == list(range(start, min(end, start + count)))
    kept.drop_below(1, dropped)
    found = kept.units(1, dropped, dropped + count)
    assert found["tag_hash"].tolist() == list(range(dropped, min(end, dropped + count)))
    kept.drop(1)
    assert len(kept.units(1, 0, end)) == 0
    assert kept.units(2, 0, 9)["tag_hash"].tolist()[:1] == [0]
    kept.close()


def test_units_end_at_a_hole() -> None:
    kept = WaitingUnits()
    kept.add([(1, 0, units_at(0, 3)), (1, 5, units_at(5, 3))])
    assert kept.units(1, 1, 8)["tag_hash"].tolist() == [1, 2]
    assert len(kept.units(1, 3, 8)) == 0
    assert kept.units(1, 5, 8)["tag_hash"].tolist() == [5, 6, 7]
    kept.close()


def nameless_files() -> dict[int, int]:
    """Descriptors of deleted files, and the files' lengths."""
    found: dict[int, int] = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            if " (deleted)" in str(path.readlink()):
                found[int(path.name)] = os.fstat(int(path.name)).st_size
        except OSError:
            continue  # that of the listing itself
    return found


def test_what_the_cache_does_not_hold_lies_in_a_file_without_a_name() -> None:
    before = nameless_files()
    kept = WaitingUnits(cache_bytes_max=256 << 10)
    kept.add((1, first, units_at(first, 1000)) for first in range(0, 200_000, 1000))
    assert kept.bytes >= 4_000_000
    lengths = [length for fd, length in nameless_files().items() if fd not in before]
    assert sum(lengths) >= kept.bytes - (1 << 20)
    assert kept.units(1, 123_456, 123_459)["tag_hash"].tolist() == [123_456, 123_457, 123_458]
    kept.close()
    assert nameless_files() == before


def test_a_disk_that_is_full_is_one_sentence() -> None:
    kept = WaitingUnits()
    kept._db.execute("PRAGMA max_page_count=8")  # pyright: ignore[reportPrivateUsage] - a full disk
    with pytest.raises(Closed, match=r"full.*TMPDIR"):
        kept.add((1, first, units_at(first, 1000)) for first in range(0, 100_000, 1000))
    kept.close()
