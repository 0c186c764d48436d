"""The rules of a queue's end, as a table: no file, no log, no clock."""

from dataclasses import replace

import pytest

from container.record.unit import ConsumeQueueUnit
from tieredstore.following.queues.tail import (
    Doubt,
    EndView,
    FileState,
    HoleView,
    Verdict,
    judge_end,
    judge_hole,
    judge_report,
)

UNIT = ConsumeQueueUnit(100, 91, 7)


def bad(offset: int) -> Doubt:
    return Doubt(offset, UNIT, f"no record at {offset}")


def half(offset: int, unit: ConsumeQueueUnit = UNIT) -> Doubt:
    return Doubt(offset, unit, f"another tags code at {offset}", by_tags_only=True)


OTHER = replace(UNIT, tag_hash=8)

# Units [5, 9) are written: 5, 6, 7, 8.
END = [
    pytest.param(EndView(5, 9, None, None), Verdict(9, None), id="all good"),
    pytest.param(
        EndView(5, 9, bad(8), None), Verdict(9, None), id="the last one was bad and is good now"
    ),
    pytest.param(
        EndView(5, 9, bad(5), None, first=None),
        Verdict(9, None),
        id="the first one was bad and is good now",
    ),
    pytest.param(
        EndView(5, 9, bad(5), None, first=bad(5)),
        Verdict(5, bad(5), damage="no record at 5"),
        id="J4: the first one stays bad and others follow",
    ),
    pytest.param(
        EndView(5, 9, half(5), None, first=half(5)),
        Verdict(9, half(5)),
        id="a tags code that stays is no damage",
    ),
    pytest.param(
        EndView(5, 9, None, half(8)), Verdict(8, half(8)), id="J2: the last one may be half written"
    ),
    pytest.param(
        EndView(5, 9, half(8), half(8)), Verdict(9, half(8)), id="J2: it counts once it stays"
    ),
    pytest.param(
        EndView(5, 9, half(8, OTHER), half(8)),
        Verdict(8, half(8)),
        id="J2: one that changed waits for another look",
    ),
    pytest.param(
        EndView(5, 9, half(7), half(8)), Verdict(8, half(8)), id="J2: another one says nothing"
    ),
    pytest.param(
        EndView(5, 9, None, bad(8), first_bad=7, bad=bad(7)),
        Verdict(7, bad(7)),
        id="J3: what a crash leaves waits",
    ),
    pytest.param(
        EndView(5, 9, bad(5), bad(8), first_bad=5, bad=bad(5)),
        Verdict(5, bad(5)),
        id="J3: nothing good follows, so it is no damage yet",
    ),
    pytest.param(
        EndView(5, 9, None, bad(8), first_bad=8, bad=None),
        Verdict(8, None),
        id="the bad one became good between two reads",
    ),
]


@pytest.mark.parametrize(("view", "verdict"), END)
def test_which_units_count(view: EndView, verdict: Verdict) -> None:
    assert judge_end(view) == verdict
    assert view.end <= verdict.end <= view.written_end


def hole(file: FileState, good_after: int | None = 40, *, is_written: bool = False) -> HoleView:
    return HoleView(20, good_after, is_written, file, made_bytes=800)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (FileState.THERE, "the unit of offset 20 is empty, though that of offset 40 is good"),
        (FileState.MISSING, "cannot be rebuilt"),
        (FileState.WITHOUT_ROOM, "800 bytes of units are rebuilt already"),
        (FileState.MADE, "the message of offset 20 is not found in the CommitLog"),
    ],
)
def test_an_empty_unit_stops_its_queue_only_if_a_good_one_follows(
    file: FileState, sentence: str
) -> None:
    assert sentence in judge_hole(hole(file))
    assert judge_hole(hole(file, good_after=None)) == ""
    assert judge_hole(hole(file, is_written=True)) == ""
    assert judge_hole(hole(file, good_after=None, is_written=True)) == ""


@pytest.mark.parametrize(
    ("doubt", "is_readable", "untold", "told"),
    [
        (None, True, "", ""),
        (None, True, "was damaged", "was damaged"),
        (half(5), True, "", ""),
        (half(5), True, "was damaged", "was damaged"),
        (bad(5), True, "", "no record at 5"),
        (bad(5), True, "was damaged", "no record at 5"),
        (bad(5), False, "", ""),
        (bad(5), False, "was damaged", "was damaged"),
    ],
)
def test_a_report_is_told_until_it_is_settled_and_damage_once_at_least(
    doubt: Doubt | None, *, is_readable: bool, untold: str, told: str
) -> None:
    assert judge_report(doubt, is_readable=is_readable, untold=untold) == told
