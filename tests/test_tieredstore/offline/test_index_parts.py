"""Keys are cut into index files of bounded size, the same ones however a scan comes by them."""

from collections import Counter
from collections.abc import Mapping
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.metadata.coverage import merged
from container.names.rocketmq import INT64_MAX, index_name
from container.names.tier_objects import IndexBase
from tieredstore.offline.jobs import derived as subject
from tieredstore.offline.jobs.derived import INDEX_ITEMS_MAX, IndexCuts, IndexPart, index_parts

MIB = 1 << 20
EPOCH, FIRST = 1, 7


def files_of(lengths: list[int]) -> Counter[str]:
    """By the first file of each row, how many bytes of log have their keys there."""
    found: Counter[str] = Counter()
    for length, part in zip(
        lengths, index_parts(lengths, epoch=EPOCH, first_number=FIRST), strict=True
    ):
        found[part.file] += length
    return found


def test_queues_a_little_longer_than_a_file_share_one_for_their_ends() -> None:
    found = files_of([128 * MIB, 2 * MIB] * 64)
    assert len(found) == 64 + 1
    assert set(found.values()) == {128 * MIB}


def test_splits_that_do_not_fill_a_file_share_one_and_longer_ones_are_alone() -> None:
    assert [*files_of([1 << 30, 5, 1 << 30, 7]).values()] == [1 << 30, 12, 1 << 30]
    assert files_of([]) == {}


@given(st.lists(st.integers(1, 200 * MIB), min_size=1, max_size=60))
def test_no_row_is_of_more_bytes_and_few_are_of_less_than_half(lengths: list[int]) -> None:
    found = files_of(lengths)
    assert {*found} == {
        index_name(IndexBase(EPOCH, FIRST + number).number) for number in range(len(found))
    }
    longest = max(lengths)
    assert max(found.values()) <= max(128 * MIB, longest)
    half_empty = [size for size in found.values() if 2 * size <= 128 * MIB]
    assert len(half_empty) <= 1 or len(found) > subject.OPEN_GROUPS_MAX


def test_many_splits_are_grouped_with_a_look_at_few_groups() -> None:
    lengths = [100 * MIB] * 100 + [20 * MIB] * 100
    assert len(files_of(lengths)) == 100 + (100 - subject.OPEN_GROUPS_MAX) // 6


@given(st.integers(0, 1 << 32), st.integers(1, 40), st.integers(1, 300))
def test_each_key_is_in_one_file_of_a_bounded_number_whatever_the_chunks(
    seed: int, chunks: int, items_max: int
) -> None:
    rng = Random(seed)
    counts = [rng.choice((0, 0, 1, 2, 3, 70)) for _ in range(500)]
    part = IndexPart(index_name(IndexBase(EPOCH, FIRST).number), 0, INT64_MAX, items_max, 3)
    whole, once = cut(part, counts, [500])
    edges = [*sorted(rng.sample(range(1, 500), chunks - 1)), 500]
    assert (whole, once) == cut(part, counts, edges)
    assert sum(whole.values()) == sum(counts)
    for name, runs in once.items():
        alone = len(runs) == 1 and sum(counts[a] > 0 for a in range(*runs[0])) == 1
        assert whole[name] <= items_max or alone, "but for the keys of one message"
    covered = [run for runs in once.values() for run in runs]
    assert sum(b - a for a, b in covered) == 500
    assert merged(covered) == [(0, 500)]
    numbers = [base.number_of_owner for base in map(IndexBase.parse, once) if base]
    assert numbers == [*range(FIRST, FIRST + 3 * len(once), 3)]


def cut(
    part: IndexPart, counts: list[int], edges: list[int]
) -> tuple[Mapping[str, int], Mapping[str, list[tuple[int, int]]]]:
    """How many keys each file has, and of which messages, if chunks end at these edges."""
    cuts, found = IndexCuts(), Counter[str]()
    for begin, end in zip([0, *edges], edges, strict=False):
        ends = np.cumsum(counts[begin:end])
        at = 0
        for file, first, behind in cuts.cut(part, np.arange(begin, end), ends):
            assert first == at
            found[file] += behind - first
            at = behind
        assert at == ends[-1]
    return found, cuts.offsets


@given(st.lists(st.integers(1, 200 * MIB), min_size=1, max_size=60))
def test_those_who_share_a_file_have_shares_of_it(lengths: list[int]) -> None:
    shares: Counter[str] = Counter()
    for part in index_parts(lengths, epoch=EPOCH, first_number=FIRST):
        shares[part.file] += part.items_max
        assert part.items_max >= 1
    assert max(shares.values()) <= INDEX_ITEMS_MAX + len(lengths)


@pytest.mark.parametrize("name", ["old name", index_name(IndexBase(EPOCH, 9).number)])
def test_a_published_file_is_one_whatever_its_keys(name: str) -> None:
    found, offsets = cut(IndexPart(name, 0, INT64_MAX), [1000] * 50, [20, 50])
    assert found == {name: 50_000}
    assert offsets == {name: [(0, 50)]}
