"""Windows: twice as much when used to the end, half when in vain."""

from hypothesis import given
from hypothesis import strategies as st

from fetcher.window import WindowLimits, opened, used_to_its_end, wasted

LIMITS = WindowLimits(messages_min=32, messages_max=1000, step_messages=100)


def test_it_doubles_by_a_step_at_least_up_to_its_limit() -> None:
    window, sizes = opened(LIMITS, 0.0), []
    for turn in range(12):
        window = used_to_its_end(window, LIMITS, float(turn))
        sizes.append(window.messages)
    assert sizes[:4] == [132, 264, 528, 1000]
    assert sizes[-2:] == [1000, 1000]


def test_it_covers_twice_what_a_call_takes() -> None:
    window = used_to_its_end(opened(LIMITS, 0.0), LIMITS, 0.0, taken=400)
    assert window.messages == 800
    assert used_to_its_end(window, LIMITS, 0.0, taken=4000).messages == 1000


def test_it_halves_down_to_its_least() -> None:
    window = used_to_its_end(opened(LIMITS, 0.0), LIMITS, 0.0)
    assert wasted(window, LIMITS, 1.0).messages == 66
    assert wasted(wasted(window, LIMITS, 1.0), LIMITS, 2.0).messages == 33
    assert wasted(wasted(wasted(window, LIMITS, 1.0), LIMITS, 2.0), LIMITS, 3.0).messages == 32


def test_one_cause_that_shows_twice_counts_once() -> None:
    window = used_to_its_end(opened(LIMITS, 0.0), LIMITS, 0.0)
    once = wasted(window, LIMITS, 1.0)
    assert wasted(once, LIMITS, 1.0 + LIMITS.pause_s / 2) == once


def test_it_starts_again_after_a_long_pause() -> None:
    window = used_to_its_end(opened(LIMITS, 0.0), LIMITS, 0.0)
    assert used_to_its_end(window, LIMITS, LIMITS.idle_s_max + 1).messages == 32


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 100)), max_size=50))
def test_it_stays_within_its_limits(turns: list[tuple[bool, float]]) -> None:
    window, now_s = opened(LIMITS, 0.0), 0.0
    for good, pause_s in turns:
        now_s += pause_s
        window = (used_to_its_end if good else wasted)(window, LIMITS, now_s)
        assert LIMITS.messages_min <= window.messages <= LIMITS.messages_max
