"""When a tier that fails is tried again."""

from random import Random

from dispatcher.round_plan import OUTAGE_AFTER, TierHealth


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
