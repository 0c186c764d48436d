"""Everything that a page shows, as it was at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass

from container.journal.journal import JournalStatistics
from container.metadata.records import Queue
from container.names.queue_id import QueueId
from container.upkeep.upkeep import UpkeepStatistics
from dispatcher.statistics import DispatchStatistics
from fetcher.statistics import FetcherStatistics
from tieredstore.following.statistics import ScanStatistics


@dataclass(frozen=True, slots=True)
class Moment:
    """One look at a follower, made on its event loop: values that do not change afterwards."""

    now_ms: int
    """Unix time."""
    dispatch: DispatchStatistics
    scan: ScanStatistics
    journal: JournalStatistics
    is_owner: bool
    """Whether the tier is still ours, as far as we know: until the end of an orderly close."""
    upkeep: UpkeepStatistics
    queues: Mapping[QueueId, Queue]
    """What is published of each queue."""
    garbage_objects: int
    """Objects that nothing refers to and that wait for their deletion."""
    fetch: FetcherStatistics | None = None
    """What readers of the tier had; None of a process that serves none."""
    ends: bool = False
    """Whether the journal was closed in an orderly way."""
