"""Reports: the statistics of the tiering process, whichever queues changed in between."""

from dataclasses import replace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from dispatcher.ports import QueueState
from dispatcher.statistics import DispatchStatistics, QueueStatistics
from provider.ranges import QueueOffset
from provider.testing.manual_clock import ManualClock
from tieredstore.session.tiering import Tiering
from tieredstore.store.child import reports
from tieredstore.store.child.reports import QueueChanges, Report, ReportedTiering, ReportSource

NONE: Any = None
OFFSET = QueueOffset(0)


def queue_of(number: int, behind: int) -> QueueStatistics:
    queue = QueueId("Orders", number)
    return QueueStatistics(queue, QueueState.UNSETTLED, "", OFFSET, OFFSET, behind, 0.0, 0)


def dispatch_of(queues: tuple[QueueStatistics, ...]) -> DispatchStatistics:
    counters = dict.fromkeys(("bytes_in_flight", "bytes_in_flight_peak", "rounds_in_flight"), 0)
    more = dict.fromkeys(("references", "rounds", "rounds_failed", "commits", "messages"), 1)
    restless = tuple(one for one in queues if one.behind)
    return DispatchStatistics(
        queues=queues,
        restless=restless,
        **counters,
        **more,
        messages_by_topic={},
        bytes=0,
        gaps=0,
        commit_age_s=0.0,
        next_commit_s=0.0,
        outage=False,
        last_error="",
        hot_error="",
        started=True,
    )


class Following:
    """A `Tiering` whose queues a test changes. Others keep their objects, as the dispatcher's."""

    def __init__(self) -> None:
        self.queues: dict[int, QueueStatistics] = {}
        self.state = NONE

    def dispatch(self) -> DispatchStatistics:
        return dispatch_of(tuple(self.queues.values()))

    def scan(self) -> Any:
        return NONE

    upkeep = ownership = scan


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 8), st.none() | st.integers(0, 3)), max_size=12),
        max_size=8,
    ),
    st.integers(0, 7),
)
def test_the_reports_give_what_the_process_has(
    rounds: list[list[tuple[int, int | None]]], restart: int
) -> None:
    following = Following()
    tiering = cast("Tiering", following)
    source, sink = ReportSource(tiering), ReportedTiering(lambda: NONE, ManualClock())
    for number, changes in enumerate(rounds):
        for queue, behind in changes:
            if behind is None:
                following.queues.pop(queue, None)
            else:
                following.queues[queue] = queue_of(queue, behind)
        if number == restart:  # another process, which knows nothing of the first
            source = ReportSource(tiering)
            sink.begin()
        for part in source.take([], 1.0):
            sink.take(part)
        found, expected = sink.dispatch(), following.dispatch()
        assert set(found.queues) == set(expected.queues)
        assert replace(found, queues=()) == replace(expected, queues=())


def test_unchanged_queues_are_not_sent_again_and_many_go_in_parts(monkeypatch: Any) -> None:
    monkeypatch.setattr(reports, "QUEUES_MAX", 3)
    following = Following()
    following.queues = {number: queue_of(number, 0) for number in range(8)}
    source = ReportSource(cast("Tiering", following))
    first = list(source.take([], 1.0))
    assert [len(part.changed) for part in first if isinstance(part, QueueChanges)] == [3, 3, 2]
    following.queues[4] = queue_of(4, 1)
    del following.queues[7]
    changed, gone, last = source.take([], 1.0)
    assert changed == QueueChanges([following.queues[4]])
    assert gone == QueueChanges((), [QueueId("Orders", 7)])
    assert isinstance(last, Report)
    assert last.dispatch.queues == ()


def test_without_a_process_that_reports_nothing_reaches_the_tier() -> None:
    clock = ManualClock()
    sink = ReportedTiering(lambda: NONE, clock)
    report = Report(dispatch_of(()), NONE, NONE, NONE, [], 5.0)
    sink.take(report)
    assert not sink.dispatch().outage
    sink.trouble = "it was killed"
    assert (sink.dispatch().outage, sink.dispatch().last_error) == (True, "it was killed")
    sink.trouble = ""
    clock.suspend(5.0 + reports.SILENT_S_MAX - 1)
    assert not sink.dispatch().outage
    clock.suspend(1)
    assert "has not reported for 65 s" in sink.dispatch().last_error
    sink.take(report)
    assert not sink.dispatch().outage
