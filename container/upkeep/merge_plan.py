"""Which index files are merged next, decided purely; `index_merge.py` does it."""

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import log

from container.index.options import IndexOptions
from container.index.sealed import SECOND_MS, file_bytes, fitting_slots
from container.lookup.find import index_of
from container.metadata.records import IndexFile
from container.options import HOUR_MS
from container.upkeep.options import UpkeepOptions
from provider.errors import Corrupt

PERIODS_OF_RETENTION = 4
"""What is kept for three days is merged with what is 18 hours older at most."""
CLOSED_GROWTH = 1.5
"""What is merged in a period that is over is so many times the largest of it."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """When files are merged.

    M1  Files of one period only, by their newest message. So no file lives longer than its newest
        message would have made it by itself, and a period; and its items with it.
    M2  A merged file has at most `items_max` items.
    M3  A file is merged into one of `growth` times its items, `CLOSED_GROWTH` times in a period
        that is over: so that an item is written `1 + log(items_max) / log(growth)` times at most,
        where none expire.
    """

    items_max: int
    growth: float
    period_ms: int | None
    """Length of a period; None where nothing expires: all time is one."""
    closed_before_ms: int
    """Periods that ended by then get no more files."""

    def files_max(self, items: int, periods: int) -> int:
        """How many files are left of so many items in so many periods.

        Of those that are too large for another merge there are `(growth + 1) items / items_max`.
        The others of a period, in order of items: each has more than `1 / growth` of all up to it,
        or these would be merged, so their sum grows by `growth / (growth - 1)` with each.
        """
        large = int((self.growth + 1) * items / self.items_max)
        steps = log(max(items, 2)) / log(self.growth / (self.growth - 1))
        return large + periods * (2 + int(steps))


def period_ms(retention_hours: int, *, expires: bool) -> int | None:
    """The length of a period: a quarter of the time that messages are kept, if they expire."""
    return retention_hours * HOUR_MS // PERIODS_OF_RETENTION if expires else None


def merge_rules(
    index: IndexOptions, upkeep: UpkeepOptions, now_ms: int, *, growth: float | None = None
) -> MergeRules:
    """The rules of a tier with these options; `growth` in place of that of the options."""
    return MergeRules(
        index.merged_items_max,
        index.merge_growth if growth is None else growth,
        period_ms(upkeep.retention_hours, expires=upkeep.expires),
        now_ms - int(1000 * index.age_s_max),
    )


def plan_merge(
    files: Iterable[IndexFile], rules: MergeRules, *, without: Container[str] = ()
) -> tuple[IndexFile, ...] | None:
    """The files that are to become one next; None if they are few enough. O(n log n), pure.

    Never one that RocketMQ or an older program wrote, or one that a cut left items in.
    """
    periods: dict[int, list[IndexFile]] = {}
    for file in files:
        if is_mergeable(file) and file.object_name not in without:
            period = 0 if rules.period_ms is None else file.end_timestamp // rules.period_ms
            periods.setdefault(period, []).append(file)
    for period, alike in sorted(periods.items()):
        length = rules.period_ms
        is_closed = length is not None and (period + 1) * length <= rules.closed_before_ms
        growth = min(rules.growth, CLOSED_GROWTH) if is_closed else rules.growth
        found = _group(alike, growth, rules.items_max)
        if found is not None:
            return found
    return None


def plan_all_merges(
    files: Iterable[IndexFile], rules: MergeRules, *, without: Container[str] = ()
) -> list[tuple[IndexFile, ...]]:
    """The merges that follow each other until files are few enough; a pure forecast.

    What a merge makes stands in the later ones with all items of its parts; items and rows of
    messages that have expired meanwhile are left out of it when it is made. O(merges n log n).
    """
    left = {file.object_name: file for file in files}
    merges: list[tuple[IndexFile, ...]] = []
    while (group := plan_merge(left.values(), rules, without=without)) is not None:
        merges.append(group)
        for one in group:
            del left[one.object_name]
        made = _forecast(group, f"merge {len(merges)}")
        left[made.object_name] = made
    return merges


def _forecast(group: Sequence[IndexFile], name: str) -> IndexFile:
    items = sum(one.items for one in group)
    return replace(
        group[-1],
        object_name=name,
        size=file_bytes(items, fitting_slots(items)),
        items=items,
        begin_timestamp=min(one.begin_timestamp for one in group),
        end_timestamp=max(one.end_timestamp for one in group),
    )


def is_mergeable(file: IndexFile) -> bool:
    """Whether the items of a file can go into another one, as exact as they are."""
    if not file.coverage or file.crc32c is None or file.cuts or file.begin_timestamp % SECOND_MS:
        return False
    try:
        slots = index_of(file).slots
    except Corrupt:
        return False
    return slots & (slots - 1) == 0


def _group(alike: list[IndexFile], growth: float, items_max: int) -> tuple[IndexFile, ...] | None:
    """Of files of one period, as many as may become one: the small ones first."""
    ordered = sorted(alike, key=lambda one: (_weight(one), one.end_timestamp, one.object_name))
    sums = [0, *accumulate(map(_weight, ordered))]
    for last in range(len(ordered) - 1, 0, -1):
        largest, total = _weight(ordered[last]), sums[last + 1]
        first = bisect_left(sums, total - items_max, hi=last + 1)
        if first < last and total - sums[first] >= growth * largest:
            return tuple(ordered[first : last + 1])
    return None


def _weight(file: IndexFile) -> int:
    """A file without items, of messages without keys, counts as one of one."""
    return max(1, file.items)
