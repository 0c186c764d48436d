"""Plan of a round: its queues, its batches, and a tier that failed; no loop, clock or store."""

import math
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from container.record.unit import UNIT_DTYPE
from dispatcher.options import DispatchOptions
from dispatcher.round_plan import (
    OUTAGE_AFTER,
    ROUND_QUEUES_ANY,
    Load,
    TierHealth,
    Waiting,
    due_at_s,
    messages_within,
    plan_round,
    written_bytes,
)

OPTIONS = DispatchOptions(batch_bytes_max=1000, bytes_in_flight_max=8000, batch_age_s_max=1.0)
IDLE = Load(0, 0)


def waiting(
    name: str,
    size: int,
    *,
    first: int = 1,
    since_s: float = 0.0,
    due_s: float = 0.0,
    round_queues_max: int = ROUND_QUEUES_ANY,
    failed: bool = False,
) -> Waiting:
    return Waiting(
        QueueId(name, 0), size, first, since_s, due_s, since_s, round_queues_max, failed=failed
    )


def names(plan) -> list[str]:
    return [grant.queue.topic for grant in plan.grants]


def test_nothing_due_says_when_to_look_again() -> None:
    queues = [waiting("a", 10, since_s=9.9, due_s=12.0), waiting("b", 10, since_s=9.9, due_s=11.0)]
    plan = plan_round(queues, now_s=10.0, load=IDLE, options=OPTIONS)
    assert (plan.grants, plan.wake_at_s) == ((), 11.0)
    assert plan_round([], now_s=10.0, load=IDLE, options=OPTIONS).wake_at_s == math.inf


def test_a_round_takes_along_who_has_waited_half_his_time_and_nobody_else() -> None:
    queues = [
        waiting("due", 10, since_s=9.0, due_s=10.0),
        waiting("half", 10, since_s=9.5, due_s=10.5),
        waiting("fresh", 10, since_s=9.6, due_s=10.6),
    ]
    assert names(plan_round(queues, now_s=10.0, load=IDLE, options=OPTIONS)) == ["due", "half"]
    everybody = replace(OPTIONS, boarding_share=0.0)
    plan = plan_round(queues, now_s=10.0, load=IDLE, options=everybody)
    assert names(plan) == ["due", "half", "fresh"]


def test_queues_that_fill_a_round_together_are_due_together() -> None:
    options = replace(OPTIONS, round_bytes_due=1000)
    queues = [waiting(name, 333, since_s=9.9, due_s=99.0) for name in "abc"]
    assert names(plan_round(queues, now_s=10.0, load=IDLE, options=options)) == []
    failed = waiting("failed", 900, since_s=9.9, due_s=99.0, failed=True)
    assert names(plan_round([*queues, failed], now_s=10.0, load=IDLE, options=options)) == []
    full = [*queues, waiting("d", 1, since_s=9.9, due_s=99.0)]
    assert names(plan_round(full, now_s=10.0, load=IDLE, options=options)) == ["a", "b", "c", "d"]
    assert names(plan_round(full, now_s=10.0, load=IDLE, options=OPTIONS)) == []


def test_a_round_has_a_bounded_number_of_queues_longest_unserved_first() -> None:
    options = DispatchOptions(round_queues_max=3)
    queues = [waiting(str(n), 10, since_s=9.0 - n) for n in range(5)]
    assert names(plan_round(queues, now_s=10.0, load=IDLE, options=options)) == ["4", "3", "2"]
    failed = [waiting(str(n), 10, since_s=9.0 - n, failed=True) for n in range(5)]
    assert len(plan_round(failed, now_s=10.0, load=IDLE, options=options).grants) == 3


def test_queues_that_want_much_are_divided_among_the_rounds_that_may_begin() -> None:
    queues = [waiting(str(n), 100_000, since_s=n) for n in range(4)]
    first = plan_round(queues, now_s=10.0, load=IDLE, options=OPTIONS)
    assert names(first) == ["0", "1"]
    assert sum(grant.bytes_max for grant in first.grants) == 4000
    second = plan_round(queues[2:], now_s=10.0, load=Load(4000, 1), options=OPTIONS)
    assert names(second) == ["2", "3"]
    assert plan_round(queues[:1], now_s=10.0, load=Load(8000, 2), options=OPTIONS).grants == ()


def test_queues_that_want_little_go_before_those_that_want_much() -> None:
    queues = [waiting(f"thick{n}", 100_000, since_s=n) for n in range(8)]
    queues += [waiting(f"thin{n}", 20, since_s=9.0) for n in range(50)]
    plan = plan_round(queues, now_s=10.0, load=IDLE, options=OPTIONS)
    assert {f"thin{n}" for n in range(50)} <= set(names(plan))
    assert "thick0" in names(plan)


def test_queues_that_failed_travel_apart_and_in_small_company() -> None:
    queues = [waiting(str(n), 10, since_s=n, round_queues_max=2, failed=True) for n in range(5)]
    queues.append(waiting("good", 10, since_s=9.0))
    plan = plan_round(queues, now_s=10.0, load=IDLE, options=OPTIONS)
    assert (names(plan), plan.failed) == (["0", "1"], True)
    good = plan_round(queues[-1:], now_s=10.0, load=IDLE, options=OPTIONS)
    assert (names(good), good.failed) == (["good"], False)


def test_a_message_too_large_for_what_is_left_holds_the_line_until_it_fits() -> None:
    queues = [
        waiting("large", 9000, first=9000, since_s=1.0),
        waiting("thin", 10, since_s=2.0),
    ]
    assert plan_round(queues, now_s=10.0, load=Load(10, 1), options=OPTIONS).grants == ()
    assert names(plan_round(queues, now_s=10.0, load=IDLE, options=OPTIONS)) == ["large"]


@given(
    sizes=st.lists(st.tuples(st.integers(1, 20_000), st.integers(1, 3000)), min_size=1),
    flying=st.integers(0, 8000),
    rounds=st.integers(0, 1),
)
def test_a_round_never_exceeds_what_is_left(
    sizes: list[tuple[int, int]], flying: int, rounds: int
) -> None:
    load = Load(flying if rounds else 0, rounds)
    queues = [
        waiting(str(n), max(size, first), first=first, since_s=n)
        for n, (size, first) in enumerate(sizes)
    ]
    plan = plan_round(queues, now_s=10_000.0, load=load, options=OPTIONS)
    granted = sum(grant.bytes_max for grant in plan.grants)
    assert granted + load.bytes <= OPTIONS.bytes_in_flight_max
    assert plan.grants or rounds, "an idle dispatcher always begins something"
    firsts = {queue.queue: queue.first_bytes for queue in queues}
    assert all(grant.bytes_max >= firsts[grant.queue] for grant in plan.grants)
    assert len(set(names(plan))) == len(plan.grants)


LIMITS = {"messages_max": 10, "bytes_max": 1000, "age_s_max": 0.5}


def test_a_batch_closes_on_count_on_bytes_or_on_age() -> None:
    assert due_at_s(messages=10, bytes_known=10, since_s=7.0, **LIMITS) == 7.0
    assert due_at_s(messages=1, bytes_known=1000, since_s=7.0, **LIMITS) == 7.0
    assert due_at_s(messages=9, bytes_known=999, since_s=7.0, **LIMITS) == 7.5


@given(
    st.lists(st.integers(1, 5000), min_size=1),
    st.integers(1, 100),
    st.integers(0, 20_000),
)
def test_a_cut_takes_as_many_as_fit_and_always_one(
    sizes: list[int], messages_max: int, bytes_max: int
) -> None:
    count = messages_within(
        np.array(sizes, np.int64), messages_max=messages_max, bytes_max=bytes_max
    )
    assert 1 <= count <= min(len(sizes), messages_max)
    assert count == 1 or sum(sizes[:count]) <= bytes_max
    if count < min(len(sizes), messages_max):
        assert sum(sizes[: count + 1]) > bytes_max


def test_sizes_of_a_damaged_unit_count_as_one_byte() -> None:
    units = np.zeros(3, UNIT_DTYPE)
    units["size"] = [-5, 0, 100]
    assert written_bytes(units).tolist() == [21, 21, 120]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_messages_max": 0}, "batch_messages_max must be positive, not 0"),
        ({"batch_age_s_max": -1.0}, "batch_age_s_max must not be negative"),
        ({"batch_bytes_max": 64 << 20}, "at least rounds_max x batch_bytes_max = 134217728"),
        ({"references_max": 100}, "at least batch_messages_max = 4096"),
        ({"backoff_s_max": 0.01}, "must not be below backoff_s_min"),
        ({"backfill": timedelta(hours=-1)}, "backfill must reach into the past"),
    ],
)
def test_options_that_cannot_work_are_refused_with_a_sentence(
    options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        DispatchOptions(**options)


def test_the_memory_bound_is_what_the_formula_says() -> None:
    options = DispatchOptions()
    assert options.round_bytes_max == options.commit_bytes_max == 32 << 20
    assert options.commit_messages_max == 32_768
    assert options.memory_bytes_max == (128 << 20) + (40 << 20) + 12 * ((4 << 20) + (64 << 10))


def intervals(health: TierHealth, failures: int) -> list[float]:
    found: list[float] = []
    for _ in range(failures):
        health.failed(100.0)
        found.append(health.retry_at_s - 100.0)
    return found


def test_intervals_of_an_outage_double_up_to_the_longest() -> None:
    health = TierHealth(backoff_s_min=1.0, backoff_s_max=5.0)
    assert intervals(health, 6) == [1.0] * OUTAGE_AFTER + [2.0, 4.0, 5.0]
    assert health.landed()
    assert intervals(health, 1) == [1.0]


def test_chance_takes_up_to_half_off_so_that_not_all_try_at_once() -> None:
    long = intervals(TierHealth(backoff_s_min=1.0, backoff_s_max=5.0), 50)
    first, second = (
        intervals(TierHealth(backoff_s_min=1.0, backoff_s_max=5.0, rng=Random(seed)), 50)
        for seed in (1, 2)
    )
    assert first != second
    for found in (first, second):
        assert all(most / 2 <= one <= most for one, most in zip(found, long, strict=True))
