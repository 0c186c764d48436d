"""Which queues a poll looks at: shares of time, and queues that records named."""

from container.names.queue_id import QueueId
from tieredstore.following.queues.poll_schedule import SHARE_AT_REST, SHARE_OF_GROWTH, PollSchedule

A0, A1 = QueueId("A", 0), QueueId("A", 1)


def schedule(scan_s_max: float = 1000.0) -> PollSchedule:
    made = PollSchedule(settle_s=2.0, scan_s_min=1.0, scan_s_max=scan_s_max)
    assert made.polls_all(0.0)
    made.polled_all(0.0, 0.0, is_full=True)
    return made


def test_a_named_queue_is_looked_at_until_its_units_must_be_there() -> None:
    looks = schedule()
    looks.grew(0.1, [A0])
    assert looks.named(1.0) == [A0]
    looks.grew(1.0, [A1])
    assert looks.named(2.5) == [A1]
    assert not looks.is_settled(2.5)
    assert looks.named(3.0) == []
    assert looks.is_settled(3.0)
    looks.check()


def test_looks_at_rest_take_their_share_of_the_time() -> None:
    looks = schedule()
    looks.polled_all(1.0, 1.1, is_full=True)
    cycle_s = 0.1 / SHARE_AT_REST
    assert not looks.polls_all(1.0 + cycle_s - 0.01)
    assert looks.is_full_poll_due(1.0 + cycle_s + 0.01)
    looks.check()


def test_the_longest_pause_holds_however_much_a_look_costs() -> None:
    looks = schedule(scan_s_max=10.0)
    looks.polled_all(1.0, 3.0, is_full=True)
    assert not looks.polls_all(12.9)
    assert looks.polls_all(13.0)
    looks.check()


def test_growth_that_names_nothing_is_looked_for_in_its_share_of_the_time() -> None:
    looks = schedule()
    looks.polled_all(1.0, 2.0, is_full=True)
    looks.grew(2.0, None)
    assert not looks.polls_all(2.0)
    looks.grew(5.0, None)
    at_s = 1.0 + 1.0 / SHARE_OF_GROWTH
    assert looks.polls_all(at_s)
    looks.polled_all(at_s, at_s + 0.1, is_full=False)
    assert not looks.polls_all(at_s + 0.1)
    assert not looks.is_full_poll_due(at_s + 0.1), "the directories keep their own pause"
    looks.check()


def test_something_new_is_looked_for_after_the_shortest_pause() -> None:
    looks = schedule()
    looks.polled_all(1.0, 3.0, is_full=True)
    looks.poll_soon(3.5)
    assert not looks.polls_all(4.4)
    assert looks.is_full_poll_due(4.5)
    looks.check()
