"""Which queues go into the next round: decided without a loop, a clock or a store."""

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from dispatcher.options import DispatchOptions
from dispatcher.round_plan import ROUND_QUEUES_ANY, Load, Waiting, plan_round

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
