"""Reports of a tiering process: its statistics, of which queues are sent when they changed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from prometheus_client import Metric

from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.upkeep.upkeep import UpkeepStatistics
from dispatcher.statistics import DispatchStatistics, QueueStatistics
from provider.clock import Clock
from tieredstore.following.statistics import ScanStatistics
from tieredstore.session.tiering import Ownership, Tiering

QUEUES_MAX = 4_096
"""Queues in one message: some 10 ms of work for the process that receives it."""

SILENT_S_MAX = 60.0
"""Seconds by which a report may be late. Then the process counts as hanging."""


@dataclass(frozen=True, slots=True)
class Report:
    """Sample of a tiering process."""

    dispatch: DispatchStatistics
    """Without `queues`, which are sent before."""
    scan: ScanStatistics
    upkeep: UpkeepStatistics
    ownership: Ownership
    metrics: Sequence[Metric]
    """Metrics that count by themselves, such as those of the storage."""
    next_s: float
    """Seconds until the next report."""


@dataclass(frozen=True, slots=True)
class QueueChanges:
    """Changed statistics of some queues."""

    changed: Sequence[QueueStatistics]
    gone: Sequence[QueueId] = ()
    """Queues that are no longer followed."""


class ReportSource:
    """Takes samples. Statistics of queues that did not change since the last one are left out."""

    def __init__(self, tiering: Tiering) -> None:
        self._tiering = tiering
        self._sent: dict[QueueId, QueueStatistics] = {}

    def __repr__(self) -> str:
        return f"<ReportSource of {self._tiering!r}>"

    def take(self, metrics: Sequence[Metric], next_s: float) -> Iterator[QueueChanges | Report]:
        """Yield the changes of queues in parts, then the report. O(queues)."""
        tiering = self._tiering
        dispatch = tiering.dispatch()
        sent = self._sent
        # Unchanged queues keep their objects: `TieredDispatcher.statistics`.
        changed = [one for one in dispatch.queues if sent.get(one.queue) is not one]
        gone: list[QueueId] = []
        sent.update((one.queue, one) for one in changed)
        if len(sent) > len(dispatch.queues):
            gone = list(sent.keys() - {one.queue for one in dispatch.queues})
            for queue in gone:
                del sent[queue]
        for at in range(0, len(changed), QUEUES_MAX):
            yield QueueChanges(changed[at : at + QUEUES_MAX])
        if gone:
            yield QueueChanges((), gone)
        yield Report(
            replace(dispatch, queues=()),
            tiering.scan(),
            tiering.upkeep(),
            tiering.ownership(),
            metrics,
            next_s,
        )


class ReportedTiering:
    """`Tiering` by the reports of another process, and by the reader of its tier."""

    def __init__(self, state: Callable[[], TierState], clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._heard_s = clock.monotonic_s()
        self._queues: dict[QueueId, QueueStatistics] = {}
        self._listed: tuple[QueueStatistics, ...] | None = ()
        self._report: Report | None = None
        self.trouble = ""
        """Why no process tiers at present; "" while one does."""

    def __repr__(self) -> str:
        return f"<ReportedTiering: {len(self._queues)} queues>"

    def begin(self) -> None:
        """Forget the queues of an earlier process."""
        self._queues.clear()
        self._listed = None

    def take(self, part: QueueChanges | Report) -> None:
        """Take a part of a report."""
        if isinstance(part, Report):
            self._report = part
            self._heard_s = self._clock.monotonic_s()
            return
        self._queues.update((one.queue, one) for one in part.changed)
        for queue in part.gone:
            self._queues.pop(queue, None)
        self._listed = None

    @property
    def last(self) -> Report:
        """Last report. There is one since the tier was opened."""
        assert self._report is not None, "the first report comes before the tier is used"
        return self._report

    @property
    def age_s(self) -> float:
        """Age of the last report, in seconds."""
        return self._clock.monotonic_s() - self._heard_s

    def _hindrance(self) -> str:
        """Return why nothing is tiered at present; "" if the process reports."""
        if self.trouble or self.age_s < self.last.next_s + SILENT_S_MAX:
            return self.trouble
        return f"the tiering process has not reported for {self.age_s:.0f} s"

    @property
    def state(self) -> TierState:
        """See `Tiering`."""
        return self._state()

    def dispatch(self) -> DispatchStatistics:
        """Return progress as of the last report.

        Without a process that reports it is an outage: nothing reaches the tier.
        """
        if self._listed is None:
            self._listed = tuple(self._queues.values())
        found = replace(self.last.dispatch, queues=self._listed)
        reason = self._hindrance()
        return replace(found, outage=True, last_error=reason) if reason else found

    def scan(self) -> ScanStatistics:
        """See `Tiering`."""
        return self.last.scan

    def upkeep(self) -> UpkeepStatistics:
        """See `Tiering`."""
        return self.last.upkeep

    def ownership(self) -> Ownership:
        """See `Tiering`."""
        return self.last.ownership
