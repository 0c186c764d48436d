"""Messages of a topic that the tier lacks, remembered while neither side changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from container.lookup.coverage import Span, readable, without
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from tieredstore.store.cold_side import ColdSide
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.protocol import MessageStore

TOPICS_MAX = 64
"""Topics that are remembered."""


@dataclass(frozen=True, slots=True)
class _Known:
    """An answer, and what it was true of."""

    state: TierState
    sequence: int
    revision: int
    spans: Mapping[int, Sequence[Span]]


class Untiered:
    """Offsets that the tier lacks and the hot log may have, by topic.

    Offsets from the tier's end on, those below the tier's first offset, and those in its gaps.
    """

    def __init__(self, inner: MessageStore) -> None:
        self._inner = inner
        self._known: dict[str, _Known] = {}

    def __repr__(self) -> str:
        return f"<Untiered of {self._inner!r}: {len(self._known)} topics>"

    async def spans(self, topic: str, cold: ColdSide) -> Mapping[int, Sequence[Span]]:
        """Offsets that the tier lacks, by queue of the hot log; none for a queue that it has whole.

        O(1) where nothing was put or tiered since the last call; else O(queues), some 0.3 us each
        where nothing is wrapped around the hot log, which is then asked itself.
        """
        inner, state = self._inner, cold.tier.state
        if not isinstance(inner, LocalMessageStore):
            return await self._asked(topic, cold)
        log = inner.log
        known, revision = self._known.get(topic), log.revision
        if (
            known is not None
            and known.state is state
            and (known.sequence, known.revision) == (state.sequence, revision)
        ):
            return known.spans
        found: dict[int, Sequence[Span]] = {}
        for queue_id in inner.queue_ids(topic):
            queue = QueueId(topic, queue_id)
            if spans := _lacking(state, queue, log.end_offset(queue)):
                found[queue_id] = spans
        self._known.pop(topic, None)
        if len(self._known) >= TOPICS_MAX:
            del self._known[next(iter(self._known))]
        self._known[topic] = _Known(state, state.sequence, revision, found)
        return found

    async def _asked(self, topic: str, cold: ColdSide) -> Mapping[int, Sequence[Span]]:
        found: dict[int, Sequence[Span]] = {}
        state = cold.tier.state
        for queue_id in self._inner.queue_ids(topic):
            queue = QueueId(topic, queue_id)
            end = await self._inner.max_offset(*queue)
            if spans := _lacking(state, queue, end):
                found[queue_id] = spans
        return found


def _lacking(state: TierState, queue: QueueId, end: int) -> Sequence[Span]:
    """Offsets below the hot log's `end` that the tier lacks."""
    record = state.queues.get(queue)
    if record is None:
        return without([(0, end)], ())
    if record.next_offset >= end and not (record.min_offset or record.gaps):
        return ()
    return without([(0, end)], readable(record))
