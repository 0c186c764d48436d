"""Which messages of a topic the hot log alone has, remembered while neither side changes."""

from collections.abc import Mapping
from dataclasses import dataclass

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
    starts: Mapping[int, int]


class Untiered:
    """What is in the hot log and not in the tier yet, by topic."""

    def __init__(self, inner: MessageStore) -> None:
        self._inner = inner
        self._known: dict[str, _Known] = {}

    def __repr__(self) -> str:
        return f"<Untiered of {self._inner!r}: {len(self._known)} topics>"

    async def starts(self, topic: str, cold: ColdSide) -> Mapping[int, int]:
        """The queues of which the hot log has more than the tier, and where that begins.

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
            return known.starts
        found: dict[int, int] = {}
        for queue_id in inner.queue_ids(topic):
            queue = QueueId(topic, queue_id)
            record = state.queues.get(queue)
            tiered = 0 if record is None else record.next_offset
            if log.end_offset(queue) > tiered:
                found[queue_id] = tiered
        self._known.pop(topic, None)
        if len(self._known) >= TOPICS_MAX:
            del self._known[next(iter(self._known))]
        self._known[topic] = _Known(state, state.sequence, revision, found)
        return found

    async def _asked(self, topic: str, cold: ColdSide) -> Mapping[int, int]:
        found: dict[int, int] = {}
        for queue_id in self._inner.queue_ids(topic):
            queue = QueueId(topic, queue_id)
            record = cold.tier.state.queues.get(queue)
            tiered = 0 if record is None else record.next_offset  # first: what moves is in both
            if await self._inner.max_offset(*queue) > tiered:
                found[queue_id] = tiered
        return found
