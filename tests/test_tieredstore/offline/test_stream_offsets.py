"""How far a batch of a stream goes, and what it must not pass over: without Spark."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.metadata.records import Gap
from provider.ranges import QueueOffset
from tieredstore.config.sources import ConfigError
from tieredstore.offline.scan.split import Seen
from tieredstore.offline.spark.stream_offsets import (
    MissingMessages,
    Offsets,
    TieredOffsets,
    advances,
    begun_anew,
    capped,
    end_of_first_batch,
    initial,
    is_first_batch_of_older_program,
    is_initial,
    marked,
    parse_offsets,
    parse_queue,
    refuse_ahead,
    refuse_deleted,
    refuse_other_generation,
    refuse_other_tier,
    stretches,
)

SPANS = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted)
BOUNDS = st.dictionaries(
    st.sampled_from([f"T/{number}" for number in range(6)]),
    SPANS.map(lambda span: TieredOffsets(span[0], span[1])),
)


@given(BOUNDS, st.one_of(st.none(), st.integers(1, 20)), st.data())
def test_batches_end_at_the_end_with_each_message_once(
    bounds: dict[str, TieredOffsets], rows_max: int | None, data: st.DataObject
) -> None:
    known = data.draw(st.sets(st.sampled_from(sorted(bounds)))) if bounds else set()
    start: Offsets = {name: bounds[name].first for name in known}
    found: list[tuple[str, int]] = []
    for _ in range(400):
        end = capped(start, bounds, rows_max)
        if end == start:
            break
        parts = stretches(start, end, bounds, fail_on_data_loss=True)
        rows = [(str(one.queue), at) for one in parts for at in range(one.start, one.end)]
        assert rows_max is None or len(rows) <= rows_max
        assert parts == stretches(start, end, bounds, fail_on_data_loss=True)
        found += rows
        start = end
    assert sorted(found) == [
        (name, at) for name, one in sorted(bounds.items()) for at in range(one.first, one.end)
    ]


@given(st.integers(1, 100))
def test_a_queue_with_much_gets_what_the_others_leave(rows_max: int) -> None:
    bounds = {
        "T/0": TieredOffsets(0, 3),
        "T/1": TieredOffsets(0, 1000),
        "T/2": TieredOffsets(0, 1000),
    }
    end = capped(dict.fromkeys(bounds, 0), bounds, rows_max)
    assert sum(end.values()) == rows_max
    assert abs(end["T/1"] - end["T/2"]) <= 1


def test_what_is_missing_is_named_unless_it_may_be_passed_over() -> None:
    lost = Gap(QueueOffset(30), QueueOffset(32), "the broker deleted them", 0)
    bounds = {"T/0": TieredOffsets(10, 40, (lost,))}
    for start, end, sentence in (
        (5, 20, "messages 5 to 9 of T/0 expired or were deleted"),
        (20, 35, "messages 30 to 31 of T/0 were lost before they could be tiered"),
        (35, 45, "messages 40 to 44 of T/0 were cut off the tier"),
    ):
        with pytest.raises(MissingMessages, match=sentence):
            stretches({"T/0": start}, {"T/0": end}, bounds, fail_on_data_loss=True)
        kept = stretches({"T/0": start}, {"T/0": end}, bounds, fail_on_data_loss=False)
        assert [(one.start, one.end) for one in kept] == [(max(start, 10), min(end, 40))]
    with pytest.raises(MissingMessages, match="messages 3 to 6 of T/1 expired or were deleted"):
        stretches({"T/1": 3}, {"T/1": 7}, bounds, fail_on_data_loss=True)
    with pytest.raises(MissingMessages, match="T/0 ends at 40, and the stream has read up to 41"):
        refuse_ahead({"T/0": 41}, bounds)


@pytest.mark.parametrize("text", ["newest", "[1]", '{"T/0": -1}', '{"T/0": true}', '{"T": 1}'])
def test_offsets_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_offsets(text, option="startingOffsets")


def test_topics_may_have_any_name_in_front_of_the_number() -> None:
    assert parse_offsets('{"%RETRY%g/0": 7}', option="x") == {"%RETRY%g/0": 7}
    assert parse_queue("a/b/3") == ("a/b", 3)


def test_offsets_count_in_one_tier_and_one_generation_of_a_queue() -> None:
    bounds = {"T/0": TieredOffsets(0, 9), "T/1": TieredOffsets(0, 9, generation=2)}
    start = marked({"T/0": 4, "T/1": 4}, bounds, Seen(17))
    assert start == {"T/0": 4, "T/1": 4, "@tier": 17, "@generation T/1": 2}
    end = marked(capped(start, bounds, None), bounds, Seen(17))
    assert list(end) == list(start)
    assert [tuple(one) for one in stretches(start, end, bounds, fail_on_data_loss=True)] == [
        (parse_queue("T/0"), 4, 9), (parse_queue("T/1"), 4, 9)
    ]  # fmt: skip
    assert stretches(start, {**start, "@tier": 18}, bounds, fail_on_data_loss=True) == []
    for known, now in ((17, 17), (17, 0), (0, 18)):
        refuse_other_tier({"@tier": known}, Seen(now))
    refuse_other_tier({}, Seen(18))
    with pytest.raises(MissingMessages, match="the tier was recreated since"):
        refuse_other_tier(start, Seen(18))
    refuse_other_generation(start, bounds)
    refuse_other_generation({"T/0": 4, "T/1": 4}, bounds)
    again = {**bounds, "T/0": TieredOffsets(0, 9, generation=1)}
    with pytest.raises(MissingMessages, match="the stream has read up to 0"):
        refuse_other_generation({**start, "T/0": 0}, again)
    with pytest.raises(MissingMessages, match="T/0 was truncated or recreated"):
        refuse_other_generation(start, again)


def test_the_first_batch_keeps_the_beginning_in_the_checkpoint() -> None:
    start = initial(marked({"T/0": 4}, {}, Seen(17)))
    end = end_of_first_batch(start)
    assert end == {"T/0": 4, "@tier": 17, "@initial": 0}
    assert end != start, "Spark sees a batch"
    assert (is_initial(start), is_initial(end)) == (True, False)
    bounds = {"T/0": TieredOffsets(0, 9)}
    later = marked(capped(end, bounds, None), bounds, Seen(17))
    assert (list(later), later["@initial"]) == (list(end), 0)
    assert not is_first_batch_of_older_program(start, end)
    assert not is_first_batch_of_older_program(end, later)
    assert is_first_batch_of_older_program(start, {"T/0": 9, "@tier": 17})
    assert not is_first_batch_of_older_program({"T/0": 4, "@tier": 17}, {"T/0": 9, "@tier": 17})


GAPS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted), max_size=4)


@given(st.integers(0, 60), SPANS, GAPS, st.integers(1, 9))
def test_batches_count_messages_and_not_offsets(
    first: int, span: list[int], lost: list[list[int]], rows_max: int
) -> None:
    gaps = [Gap(QueueOffset(a), QueueOffset(b), "lost", 0) for a, b in lost if a < b]
    bounds = {"T/0": TieredOffsets(span[0], span[1], gaps)}
    missing = {at for gap in gaps for at in range(gap.start, gap.end)}
    there = [at for at in range(max(first, span[0]), span[1]) if at not in missing]
    start, batches = {"T/0": first}, list[list[int]]()
    while (end := capped(start, bounds, rows_max)) != start:
        parts = stretches(start, end, bounds, fail_on_data_loss=False)
        offsets = [at for one in parts for at in range(one.start, one.end)]
        batches.append([at for at in offsets if at not in missing])
        start = end
    assert [at for batch in batches for at in batch] == there
    assert [len(batch) for batch in batches[:-1]] == [rows_max] * (len(batches) - 1)
    assert start["T/0"] == max(first, span[1])


def test_a_million_expired_offsets_are_no_batch() -> None:
    bounds = {
        "T/0": TieredOffsets(1_000_000, 1_000_010),
        "T/1": TieredOffsets(7, 7),
        "T/2": TieredOffsets(0, 5),
    }
    end = capped(dict.fromkeys(bounds, 0), bounds, 20)
    assert end == {"T/0": 1_000_010, "T/1": 7, "T/2": 5}


def test_a_queue_that_the_tier_has_no_more_is_data_loss() -> None:
    refuse_deleted({"T/0": 4, "@tier": 17}, {"T/0"})
    with pytest.raises(MissingMessages, match="T/1 was deleted, and the stream has read up to 0"):
        refuse_deleted({"T/0": 4, "T/1": 0, "@tier": 17}, {"T/0"})


def test_a_queue_made_again_begins_anew_in_a_stream_that_may_lack_messages() -> None:
    start = {"T/0": 9, "T/1": 9, "@tier": 17}
    cut = TieredOffsets(0, 20, generation=1)
    again = TieredOffsets(3, 20, generation=2, is_made_again=True)
    bounds = {"T/0": cut, "T/1": again}
    begun = begun_anew(start, bounds)
    assert begun == {**start, "T/1": 3, "@life T/1": 2}
    assert begun_anew({"T/1": 9}, bounds) == {"T/1": 9}, "an older program's checkpoint"
    end = marked(capped(begun, bounds, None), bounds, Seen(17))
    found = stretches(start, end, bounds, fail_on_data_loss=False)
    assert found == [(parse_queue("T/0"), 9, 20), (parse_queue("T/1"), 3, 20)]
    assert begun_anew(end, bounds) == end
    third = {"T/1": TieredOffsets(0, 50, generation=3, is_made_again=True)}
    assert stretches(start, end, third, fail_on_data_loss=False) == []


def test_a_queue_that_was_made_again_and_cut_later_is_gone_on_with() -> None:
    made = {"T/0": TieredOffsets(0, 9, generation=3, is_made_again=True, topic_id=7)}
    start = marked({"T/0": 9}, made, Seen(17))
    cut = {"T/0": made["T/0"]._replace(end=12, generation=4)}
    assert begun_anew(start, cut) == start
    again = {"T/0": cut["T/0"]._replace(topic_id=8)}
    assert begun_anew(start, again) == {**start, "T/0": 0, "@life T/0": 4}


@pytest.mark.parametrize(("entry", "goes_on"), [(0, True), (77, True), (78, False)])
def test_a_journal_whose_entry_of_that_number_is_another_one_is_another_history(
    entry: int,
    goes_on: bool,  # noqa: FBT001 - the answer
) -> None:
    start, now = marked({"T/0": 4}, {}, Seen(17, 9, 2, 5, 77)), Seen(17, 12, 3, 6, 80)
    refuse_other_tier({**start, "@entry": 0}, now)
    without = marked(start, {}, Seen(17, 10, 2, 5))
    assert "@entry" not in without, "it would be of another entry"
    refuse_other_tier(without, now, entry)
    if goes_on:
        refuse_other_tier(start, now, entry)
    else:
        with pytest.raises(MissingMessages, match="put back from an older copy"):
            refuse_other_tier(start, now, entry)


@pytest.mark.parametrize(
    ("now", "goes_on"),
    [
        (Seen(17, 9, 2, 5), True),
        (Seen(17, 12, 2, 5), True),
        (Seen(17, 12, 3, 6), True),
        (Seen(17, 8, 2, 5), False),
        (Seen(17, 12, 1, 4), False),
        (Seen(17, 12, 2, 6), False),
    ],
    ids=["same", "later entry", "later owner", "earlier entry", "earlier owner", "other owner"],
)
def test_a_stream_goes_on_in_the_history_that_it_has_read(now: Seen, goes_on: bool) -> None:  # noqa: FBT001 - the answer
    start = marked({"T/0": 4}, {}, Seen(17, 9, 2, 5))
    later = marked(start, {}, now)
    assert not advances(start, later), "entries without a message are no batch"
    assert advances(start, {**later, "T/0": 5})
    if goes_on:
        refuse_other_tier(start, now)
    else:
        with pytest.raises(MissingMessages, match="put back from an older copy"):
            refuse_other_tier(start, now)
