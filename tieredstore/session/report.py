"""Log records of tiering, on the logger `tieredstore.follower`."""

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.upkeep.upkeep import UpkeepStatistics
from dispatcher.ports import HALTED, QueueState
from dispatcher.statistics import DispatchStatistics, QueueStatistics
from provider.clock import Clock
from tieredstore.config.effective import Config
from tieredstore.config.location import TierUrl
from tieredstore.following.statistics import ScanStatistics
from tieredstore.metrics.summary import Loss, counted, messages_of
from tieredstore.session.places import directory_of

LOGGER = logging.getLogger("tieredstore.follower")

LOOK_S_MIN = 1.0
"""Seconds between two samples of the statistics."""
LOOK_SHARE_MAX = 0.005
"""Share of the time that sampling may take: statistics cost more with more queues."""
STANDING_S = 60.0
"""Seconds between two log lines on the state of tiering."""
FAILURES_SAID = 3
"""Consecutive failed attempts of a queue before they are logged."""
ALONE_MAX = 3
"""Queues with the same trouble, and gaps of one reason in a sample, up to which each is logged on
its own."""
SAID_AGAIN_AT = 2
"""Growth of the number of queues with the same trouble at which it is logged again."""

RETENTION = "tieredStoreFileReservedTime"
NO_RETENTION = "messages are deleted from the tier only with tieredStoreDeleteFileEnable=true"

_VARYING = re.compile(r"\d+")
_PLACE = re.compile(r" \([^()]*\)\Z")
"""The path and position at the end of the text of a `StoreError`."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A present fault, with its log sentences."""

    key: str
    """Identity of the trouble: a later sentence with the same key is the same trouble."""
    sentence: str
    level: int = logging.WARNING
    over: str = ""
    """Sentence for the log when the trouble is over; "" for none."""
    queues: int = 1
    """Number of queues that have it."""

    def is_news(self, before: "Trouble | None", *, is_last: bool) -> bool:
        """Whether it is to be logged after `before`. The last report counts each further queue."""
        if before is None or _cause(before.sentence) != _cause(self.sentence):
            return True
        return self.queues >= before.queues * SAID_AGAIN_AT or (
            is_last and self.queues > before.queues
        )


@dataclass(frozen=True, slots=True)
class Look:
    """Sample of everything that is reported."""

    dispatch: DispatchStatistics
    scan: ScanStatistics
    upkeep: UpkeepStatistics
    losses: Sequence[Loss]
    """Gaps that are new since the tier was opened."""
    topics_before: AbstractSet[str] = frozenset()
    """Topics that the tier had when it was opened."""


def log_start(config: Config, store_dir: Path) -> None:
    """Log broker, cluster, store and tier before anything is opened."""
    store, where = os.path.abspath(store_dir), directory_of(config)  # noqa: PTH100 - links are left
    tier = str(where) if isinstance(where, TierUrl) else os.path.abspath(where)  # noqa: PTH100 - likewise
    fields = {"broker": config.broker, "cluster": config.cluster, "store": store, "tier": tier}
    LOGGER.info(
        "%s of cluster %s: from the store %s into the tier %s",
        *fields.values(),
        extra={"fields": fields},
    )
    if config.upkeep.expires:
        hours = config.upkeep.retention_hours
        LOGGER.info("messages are deleted from the tier %d hours after they were stored", hours)
    elif config.gives(RETENTION) and not config.gives("tieredStoreDeleteFileEnable"):
        origin = config.settings[RETENTION].origin
        LOGGER.warning("%s (%s) has no effect: %s", RETENTION, origin, NO_RETENTION)


def log_owned(state: TierState) -> None:
    """Log that this process owns the tier, and the content of the tier."""
    messages = sum(
        one.next_offset - one.min_offset for one in state.queues.bounds() if not one.gaps
    )
    messages += sum(map(messages_of, state.queues.with_gaps()))
    LOGGER.info(
        "this process owns the tier (epoch %d), which has %s of %s",
        state.broker.epoch,
        counted(messages, "message"),
        counted(len(state.queues), "queue"),
    )


class Reporter:
    """Logs the state that `look` samples, until cancelled, and once more then."""

    def __init__(self, look: Callable[[], Look], clock: Clock) -> None:
        self._look = look
        self._clock = clock
        self._troubles: dict[str, Trouble] = {}
        self._findings: frozenset[str] = frozenset()
        self._losses: set[tuple[object, int]] = set()
        self._standing = _Standing()
        self._has_compared = False

    def __repr__(self) -> str:
        return f"<Reporter: {len(self._troubles)} troubles>"

    async def run(self) -> None:
        """Sample every second, less often if a sample takes long."""
        self._standing.at_s = self._clock.monotonic_s()
        try:
            while True:
                began_s = self._clock.monotonic_s()
                look = self._look()
                self.tell(look)
                now_s = self._clock.monotonic_s()
                if line := self._standing.line(now_s, look.dispatch):
                    LOGGER.info(line)
                await self._clock.sleep(max(LOOK_S_MIN, (now_s - began_s) / LOOK_SHARE_MAX))
        finally:
            self.tell(self._look(), is_last=True)

    def tell(self, look: Look, *, is_last: bool = False) -> None:
        """Log troubles that began or ended."""
        now = {trouble.key: trouble for trouble in troubles_of(look, is_last=is_last)}
        known = {trouble.sentence for trouble in self._troubles.values()}
        for trouble in sorted(now.values(), key=lambda one: one.sentence):
            before = self._troubles.get(trouble.key)
            if before is not None and not trouble.is_news(before, is_last=is_last):
                now[trouble.key] = before  # the logged one
            elif trouble.sentence not in known:
                LOGGER.log(trouble.level, trouble.sentence)
        for key, trouble in self._troubles.items():
            if trouble.over and key not in now:
                LOGGER.info(trouble.over)
        self._troubles = now
        self._tell_stranger(look)
        self._tell_findings(look.scan)
        self._tell_losses(look.losses)

    def _tell_stranger(self, look: Look) -> None:
        """Log a store that has no queue in common with the tier, once its queues are known.

        Queues that both have are compared by the dispatcher. This is the only other sign of
        another store under the same name.
        """
        if self._has_compared or not look.dispatch.queues:
            return
        self._has_compared = True
        found = {one.queue.topic for one in look.dispatch.queues}
        if look.topics_before and found.isdisjoint(look.topics_before):
            LOGGER.warning(
                "the store has none of the tier's topics (%s): make sure that it is this broker's",
                counted(len(look.topics_before), "topic"),
            )

    def _tell_findings(self, scan: ScanStatistics) -> None:
        now = frozenset(scan.findings)
        for finding in sorted(now - self._findings):
            LOGGER.warning(finding)
        self._findings = now

    def _tell_losses(self, losses: Sequence[Loss]) -> None:
        new = [loss for loss in losses if (loss.queue, loss.gap.start) not in self._losses]
        alike: dict[str, list[Loss]] = {}
        for loss in new:
            alike.setdefault(_kind(loss.gap.reason, loss.queue), []).append(loss)
        for group in alike.values():
            if len(group) <= ALONE_MAX:
                for loss in group:
                    LOGGER.error(str(loss))
            else:
                messages = sum(loss.messages for loss in group)
                LOGGER.error(
                    "%s %s; `tieredstore topics` lists all. Such as %s",
                    counted(len({loss.queue for loss in group}), "queue"),
                    f"lost {counted(messages, 'message')}" if messages else "begin above a gap",
                    group[0],
                )
        self._losses |= {(loss.queue, loss.gap.start) for loss in new}


@dataclass(slots=True)
class _Standing:
    """Time of the last log line on the state, and the amount tiered by then."""

    at_s: float = 0.0
    messages: int = 0

    def line(self, now_s: float, statistics: DispatchStatistics) -> str:
        """The line if it is due; "" otherwise."""
        passed_s = now_s - self.at_s
        if passed_s < STANDING_S:
            return ""
        rate = (statistics.messages - self.messages) / passed_s
        self.at_s, self.messages = now_s, statistics.messages
        lag = f", the oldest for {statistics.oldest_age_s:,.0f} s" if statistics.behind else ""
        done = counted(statistics.messages, "message")
        return (
            f"{done} tiered, {statistics.behind:,} waiting{lag}; "
            f"{rate:,.0f} a second in the last minute"
        )


def _cause(sentence: str) -> str:
    """Return the cause of a trouble without its file, which differs between attempts."""
    return _PLACE.sub("", sentence.partition(": ")[2])


def troubles_of(look: Look, *, is_last: bool = False) -> Iterator[Trouble]:
    """Yield all present troubles. Pure.

    With `is_last`, each message that waits counts, however short its wait.
    """
    dispatch = look.dispatch
    if said := _failing(dispatch):
        over = "the tier can be written again, tiering continues"
        yield Trouble("outage", said, logging.ERROR, over)
    if dispatch.hot_error:
        yield Trouble(
            "hot log",
            f"the store cannot be read at present: {dispatch.hot_error}",
            logging.ERROR,
            "the store can be read again, tiering continues",
        )
    yield from _halted(dispatch.halted)
    yield from _waiting(one for one in dispatch.waiting if is_last or one.waits_long)
    for sentence in look.scan.troubles:
        yield Trouble(sentence, sentence, logging.ERROR, f"no longer so: {sentence}")
    for name, error in look.upkeep.errors.items():  # without the path, which differs at each try
        yield Trouble(
            f"upkeep {name}",
            f"upkeep fails: {name}: {error.reason}",
            over=f"upkeep continues: {name}",
        )


def _failing(dispatch: DispatchStatistics) -> str:
    """Why messages do not reach the tier, all of them or some; "" if they do."""
    if dispatch.outage:
        return f"nothing reaches the tier at present: {dispatch.last_error}"
    for one in dispatch.restless:
        if one.failures >= FAILURES_SAID and one.behind and one.state not in HALTED:
            reason = one.reason or dispatch.last_error
            return f"messages of some queues do not reach the tier at present: {reason}"
    return ""


def _halted(queues: Iterable[QueueStatistics]) -> Iterator[Trouble]:
    """Yield a sentence for each queue, or a common one for queues with the same trouble.

    Refused queues are reported by topic.
    """
    alike: dict[tuple[QueueState, str], list[QueueStatistics]] = {}
    for one in queues:
        alike.setdefault((one.state, _kind(one.reason, one.queue)), []).append(one)
    for (state, kind), group in alike.items():
        if state is QueueState.REFUSED:
            for topic, reason in {one.queue.topic: one.reason for one in group}.items():
                yield Trouble(f"refused {topic}", f"{topic} is refused: {reason}")
        elif len(group) <= ALONE_MAX:
            for one in group:
                said = f"{one.queue} is {state.value}: {one.reason}"
                over = f"{one.queue} is tiered again"
                yield Trouble(f"queue {one.queue}", said, logging.ERROR, over)
        else:
            yield Trouble(
                f"{state.value} {kind}",
                _grouped(state, group),
                logging.ERROR,
                f"queues that were {state.value} are tiered again, such as {group[0].queue}",
                len(group),
            )


def _waiting(queues: Iterable[QueueStatistics]) -> Iterator[Trouble]:
    """Yield a common sentence for all queues whose messages wait for the same event."""
    alike: dict[str, list[QueueStatistics]] = {}
    for one in queues:
        if one.state not in HALTED:
            alike.setdefault(_VARYING.sub("#", one.waits_for), []).append(one)
    for kind, group in alike.items():
        count, first = sum(one.waiting for one in group), group[0]
        named = str(first.queue) if len(group) == 1 else f"{len(group)} queues, as {first.queue},"
        age_s = max(one.oldest_age_s for one in group)
        yield Trouble(
            f"waiting {kind}",
            f"{counted(count, 'message')} of {named} cannot be tiered yet, the oldest for "
            f"{age_s:,.0f} s: {first.waits_for}",
            over=f"no longer so: messages of {named} cannot be tiered",
        )


def _kind(reason: str, queue: QueueId) -> str:
    """Return the reason without the parts that differ between queues."""
    return _VARYING.sub("#", reason.replace(queue.topic, "*"))


def _grouped(state: QueueState, group: Sequence[QueueStatistics]) -> str:
    first = group[0]
    said = f"{len(group)} queues are {state.value}, such as {first.queue}: {first.reason}"
    if "tieredstore repair" in first.reason:
        said += "; `tieredstore repair --cut-to-hot` does that for all of them"
    return said
