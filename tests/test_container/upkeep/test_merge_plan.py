"""Which files are merged: few are left, no item is written often, and ages are not mixed."""

from collections.abc import Callable
from itertools import count
from math import log
from random import Random

import pytest

from container.index.sealed import file_bytes, fitting_slots
from container.metadata.records import IndexFile
from container.options import HOUR_MS
from container.upkeep.index_merge import MergeRules, is_mergeable, period_ms, plan_merge
from provider.ranges import QueueOffset
from tests.support.tier_values import Q0

NEVER = 1 << 62
_numbers = count()


def file(items: int, newest_ms: int = 0, **others: object) -> IndexFile:
    slots = fitting_slots(items)
    name = f"index-{next(_numbers):06}"
    coverage = ((Q0, QueueOffset(0), QueueOffset(1)),)
    values: dict[str, object] = {"coverage": coverage, "crc32c": 1, **others}
    size = file_bytes(items, slots)
    return IndexFile(name, 0, size, 0, newest_ms, min(slots, items), items, **values)  # type: ignore[arg-type]


class Merging:
    """Files as they are merged, and how often the items of each were written."""

    def __init__(self, rules: MergeRules) -> None:
        self.rules = rules
        self.writes: dict[str, int] = {}
        self.files: dict[str, IndexFile] = {}

    def add(self, one: IndexFile) -> None:
        self.files[one.object_name] = one
        self.writes[one.object_name] = 1
        while group := plan_merge(self.files.values(), self.rules):
            assert len(group) >= 2
            items = sum(part.items for part in group)
            assert items <= self.rules.items_max
            if self.rules.period_ms is not None:
                assert len({part.end_timestamp // self.rules.period_ms for part in group}) == 1
            merged = file(items, max(part.end_timestamp for part in group))
            self.writes[merged.object_name] = 1 + max(self.writes[p.object_name] for p in group)
            self.files[merged.object_name] = merged
            for part in group:
                del self.files[part.object_name]

    @property
    def items(self) -> int:
        return sum(one.items for one in self.files.values())


SIZES: dict[str, Callable[[Random], int]] = {
    "alike": lambda _: 500,
    "small": lambda rng: rng.randrange(4),
    "any": lambda rng: rng.randrange(2_000),
    "of every magnitude": lambda rng: int(10 ** rng.uniform(0, 3.6)),
    "all but full": lambda rng: rng.randrange(6_000, 9_000),
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("growth", [1.5, 2.0, 4.0, 8.0])
def test_files_and_writes_stay_few(sizes: Callable[[Random], int], growth: float) -> None:
    rng = Random(7)
    rules = MergeRules(10_000, growth, None, 0)
    over = Merging(rules)
    for _ in range(400):
        over.add(file(sizes(rng)))
        assert len(over.files) <= rules.files_max(over.items, 1)
    assert max(over.writes.values()) <= 1 + log(rules.items_max, growth)


def test_ages_are_not_mixed_and_a_period_that_is_over_becomes_one_file() -> None:
    hour = 3_600_000
    rules = MergeRules(10_000, 4.0, 18 * hour, closed_before_ms=0)
    open_ones = Merging(rules)
    for seal in range(24):  # one every 3 hours for 3 days
        open_ones.add(file(100, seal * 3 * hour))
    assert sorted(one.items for one in open_ones.files.values()) == [100] * 8 + [400] * 4
    closed = Merging(MergeRules(10_000, 4.0, 18 * hour, closed_before_ms=3 * 18 * hour))
    for one in open_ones.files.values():
        closed.add(one)
    left = sorted((one.end_timestamp // (18 * hour), one.items) for one in closed.files.values())
    assert left == [(0, 600), (1, 600), (2, 600), (3, 100), (3, 100), (3, 400)]
    assert max(closed.writes.values()) <= 3


def test_what_expires_late_is_merged_rarely() -> None:
    assert period_ms(72, expires=True) == 18 * HOUR_MS
    assert period_ms(72, expires=False) is None


def test_files_of_others_and_files_with_stale_items_are_left_alone() -> None:
    good = file(100)
    assert is_mergeable(good)
    for other in (
        file(100, coverage=()),
        file(100, crc32c=None),
        file(100, cuts=1),
        IndexFile("x", 0, file_bytes(100, 25), 0, 0, 25, 100, good.coverage, 1),
        IndexFile("x", 0, good.size, 1_500, 0, 100, 100, good.coverage, 1),
        IndexFile("x", 0, 7, 0, 0, 100, 100, good.coverage, 1),
    ):
        assert not is_mergeable(other)
    rules = MergeRules(10_000, 1.5, None, NEVER)
    assert plan_merge([good, file(100, cuts=1)], rules) is None
    assert plan_merge([good, file(100)], rules, without={good.object_name}) is None
    assert plan_merge([good, file(100)], rules) is not None
