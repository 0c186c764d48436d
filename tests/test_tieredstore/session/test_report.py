"""What tiering says about itself: troubles once, their end, and a line a minute."""

import logging
from dataclasses import replace

import pytest

from container.metadata.records import Gap
from container.names.queue_id import QueueId
from container.upkeep.upkeep import UpkeepStatistics
from dispatcher.ports import DELETED_REASON, QueueState
from dispatcher.statistics import DispatchStatistics, QueueStatistics
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tests.support.simulated_time import SimulatedClock, simulated
from tests.test_tieredstore.cli.test_follow_reports import statistics
from tieredstore.following.statistics import ScanStatistics
from tieredstore.lifetime import running
from tieredstore.metrics.summary import Loss
from tieredstore.session.report import Look, Reporter

FULL = "the file system is full; free space to continue ({})"


def looking(dispatch: DispatchStatistics) -> Look:
    return Look(dispatch, ScanStatistics(), UpkeepStatistics({}, {}), ())


def failing(path: str, reason: str = FULL) -> Look:
    return looking(statistics(outage=True, last_error=reason.format(path)))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "tieredstore")
    return caplog


def test_an_outage_is_said_once_however_many_files_it_meets_and_so_is_its_end(
    said: pytest.LogCaptureFixture,
) -> None:
    reporter = Reporter(lambda: failing(""), ManualClock())
    for look in (failing("A"), failing("B"), failing("C"), looking(statistics()), failing("D")):
        reporter.tell(look)
    sentence = "nothing reaches the tier at present: " + FULL
    assert said.messages == [
        sentence.format("A"),
        "the tier can be written again, tiering continues",
        sentence.format("D"),
    ]


def test_losses_of_one_reason_are_said_together(said: pytest.LogCaptureFixture) -> None:
    def lost(topic: str, count: int, reason: str) -> list[Loss]:
        gap = Gap(QueueOffset(10), QueueOffset(15), reason, found_ms=0)
        return [Loss(QueueId(topic, queue), gap) for queue in range(count)]

    rotten = [
        Loss(QueueId("Rotten", number), Gap(QueueOffset(0), QueueOffset(1), f"at {number}", 0))
        for number in range(4)
    ]

    losses = [*lost("Many", 1_000, DELETED_REASON), *lost("Few", 3, "rotten"), *rotten]
    reporter = Reporter(lambda: failing(""), ManualClock())
    for _ in range(2):
        reporter.tell(replace(looking(statistics()), losses=losses))
    assert said.messages == [
        "1,000 queues lost 5,000 messages; `tieredstore topics` lists all. Such as "
        + str(losses[0]),
        *(f"Few/{queue} lost 5 messages, offsets 10 to 14: rotten" for queue in range(3)),
        "4 queues lost 4 messages; `tieredstore topics` lists all. Such as " + str(rotten[0]),
    ]
    assert "tieredStorePinPath" in said.messages[0]


def test_queues_that_fail_while_others_land_are_said_and_an_outage_of_that_is_no_news(
    said: pytest.LogCaptureFixture,
) -> None:
    done, why = QueueOffset(0), FULL.format("A")
    queues = [
        QueueStatistics(QueueId("T", 0), QueueState.READY, why, done, done, 5, 1.0, failures)
        for failures in (1, 2, 3)
    ]
    reporter = Reporter(lambda: failing(""), ManualClock())
    for one in queues:
        reporter.tell(looking(statistics(one)))
    reporter.tell(failing("B"))
    reporter.tell(looking(statistics()))
    assert said.messages == [
        f"messages of some queues do not reach the tier at present: {why}",
        "the tier can be written again, tiering continues",
    ]


def test_another_reason_is_said(said: pytest.LogCaptureFixture) -> None:
    reporter = Reporter(lambda: failing(""), ManualClock())
    reporter.tell(failing("A"))
    reporter.tell(failing("A", "read-only ({})"))
    assert [message.split(": ")[1] for message in said.messages] == [
        "the file system is full; free space to continue (A)",
        "read-only (A)",
    ]


def test_a_store_that_has_nothing_of_what_the_tier_has_is_said_once(
    said: pytest.LogCaptureFixture,
) -> None:
    done = QueueOffset(0)
    one = QueueStatistics(QueueId("T", 0), QueueState.READY, "", done, done, 5, 1.0, 0)
    known = statistics(one)
    for before, words in (
        (frozenset[str](), []),
        (frozenset({"T", "U"}), []),
        (frozenset({"U"}), ["the store has none of the tier's topics (1 topic)"]),
    ):
        said.clear()
        reporter = Reporter(lambda: failing(""), ManualClock())
        for dispatch in (statistics(), known, known):  # nothing is known before the first poll
            reporter.tell(replace(looking(dispatch), topics_before=before))
        assert [message.partition(":")[0] for message in said.messages] == words


def test_a_line_a_minute_tells_counts_backlog_and_lag(said: pytest.LogCaptureFixture) -> None:
    done = QueueOffset(0)
    late = QueueStatistics(QueueId("T", 0), QueueState.READY, "", done, done, 1234, 7.4, 0)
    looks = [looking(statistics(messages=600)), looking(statistics(late, messages=1800))]

    async def report() -> None:
        clock = SimulatedClock()
        shown = [*looks[:1] * 61, *looks[1:] * 200]
        reporter = Reporter(lambda: shown.pop(0), clock)
        async with running([reporter.run]):
            await clock.sleep(130)

    simulated(report())
    assert said.messages == [
        "600 messages tiered, 0 waiting; 10 a second in the last minute",
        "1,800 messages tiered, 1,234 waiting, the oldest for 7 s; 20 a second in the last minute",
    ]


def stopped(queues: int) -> Look:
    why = "the tier and the hot log have different messages at offset 0"
    done = QueueOffset(0)
    found = [
        QueueStatistics(QueueId("A", number), QueueState.STOPPED, why, done, done, 5, 1.0, 0)
        for number in range(queues)
    ]
    return looking(statistics(*found))


def test_a_trouble_of_ever_more_queues_is_said_as_they_double_and_at_last_for_all(
    said: pytest.LogCaptureFixture,
) -> None:
    """A slow machine finds out about a hundred queues in several looks."""
    reporter = Reporter(lambda: stopped(0), ManualClock())
    for queues in (4, 5, 7, 8, 15, 90, 100):
        reporter.tell(stopped(queues))
    reporter.tell(stopped(100), is_last=True)
    reporter.tell(stopped(100), is_last=True)
    assert [message.partition(" ")[0] for message in said.messages] == ["4", "8", "90", "100"]
