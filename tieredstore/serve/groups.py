"""Consumer groups: members, subscriptions, and the locks of orderly consumers. No I/O."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from provider.clock import Clock
from tieredstore.serve.wire.frame import ResponseCode
from tieredstore.serve.wire.request import Peer, Refused, objects_of, text_of
from tieredstore.session.consumer_offsets import (
    GROUPS_MAX,
    OffsetRefused,
    QueueKey,
    refuse_name,
)

LOGGER = logging.getLogger("tieredstore.serve")
SILENT_S_MAX = 120.0
"""Seconds without a heartbeat after which a member has left, as in RocketMQ."""
LOCK_S_MAX = 60.0
"""Seconds that a lock of a queue lives unless it is renewed, as in RocketMQ."""
GROUPS_OF_PEER_MAX = 1_000
TOPICS_OF_MEMBER_MAX = 1_000
SUBSCRIPTIONS_MAX = 200_000
"""Subscriptions to a topic, over all members."""
LOCKS_MAX = 100_000
"""Locked queues, over all groups."""
BROADCASTING = "BROADCASTING"
TAGS = (None, "", "TAG")
"""Types of a subscription that compare tags."""


@dataclass(frozen=True, slots=True)
class SubscribedTopic:
    """Subscription of a member to one topic."""

    expression: str
    kind: str | None
    version: int


@dataclass(slots=True)
class Member:
    """Client in a group, by its connection."""

    peer: Peer
    client_id: str
    language: str
    version: int
    model: str
    """Kind of the group, such as CLUSTERING."""
    consume_type: str
    from_where: str
    topics: Mapping[str, SubscribedTopic]
    seen_s: float

    @property
    def is_broadcasting(self) -> bool:
        """Whether each member reads all queues, so that nothing is shared out."""
        return self.model == BROADCASTING


def refuse_group(group: str) -> None:
    """Refuse a name that no group of a broker can have.

    Raises:
        Refused: it is no such name.
    """
    try:
        refuse_name(group)
    except OffsetRefused as error:
        raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from error


class Groups:
    """Members of all groups, and locks of their queues."""

    def __init__(self, clock: Clock, changed: Callable[[Peer, str], None]) -> None:
        """`changed` is called with each member of a group that changed, and the group's name."""
        self._clock = clock
        self._changed = changed
        self._members: dict[str, dict[Peer, Member]] = {}
        self._of_peer: dict[Peer, set[str]] = {}
        self._locks: dict[QueueKey, tuple[str, float]] = {}
        self._topics = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, group: str) -> bool:
        return group in self._members

    @property
    def members(self) -> int:
        """Number of members over all groups. O(groups)."""
        return sum(map(len, self._members.values()))

    def beat(self, peer: Peer, heartbeat: Mapping[str, Any], language: str, version: int) -> None:
        """Take a heartbeat: add the client to its groups, or renew it there.

        Raises:
            Refused: the heartbeat contradicts its format, or there are too many groups.
        """
        client, now_s = text_of(heartbeat, "clientID"), self._clock.monotonic_s()
        found = [
            (text_of(data, "groupName"), data) for data in objects_of(heartbeat, "consumerDataSet")
        ]
        mine = self._of_peer.get(peer, set())
        if len(mine.union(group for group, _ in found)) > GROUPS_OF_PEER_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the client is in too many groups")
        for group, data in found:
            known = self._members.get(group, {}).get(peer)
            if known is not None and heartbeat.get("withoutSub") is True:
                known.seen_s = now_s
                continue
            member = Member(
                peer,
                client,
                language,
                version,
                _word(data, "messageModel", "CLUSTERING"),
                _word(data, "consumeType", "CONSUME_PASSIVELY"),
                _word(data, "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET"),
                _topics(data),
                now_s,
            )
            self._join(group, member)

    def _join(self, group: str, member: Member) -> None:
        table = self._members.get(group)
        if table is None:
            refuse_group(group)
            if len(self._members) >= GROUPS_MAX:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"there are {GROUPS_MAX} groups already")
            table = {}
        before = table.get(member.peer)
        more = len(member.topics) - (0 if before is None else len(before.topics))
        if len(member.topics) > TOPICS_OF_MEMBER_MAX or self._topics + more > SUBSCRIPTIONS_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, "there are too many subscriptions")
        self._topics += more
        self._members[group] = table
        table[member.peer] = member
        self._of_peer.setdefault(member.peer, set()).add(group)
        if before is None:
            LOGGER.info("%s joined the group %s (%s)", member.client_id, group, member.peer.address)
        if before is None or _expressions(before) != _expressions(member):
            self._tell(group)

    def leave(self, peer: Peer, group: str | None = None) -> None:
        """Remove a client from a group; from all of its groups if none is named."""
        mine = self._of_peer.get(peer, set())
        for name in sorted(mine) if group is None else [group] if group in mine else []:
            mine.discard(name)
            table = self._members[name]
            gone = table.pop(peer)
            self._topics -= len(gone.topics)
            LOGGER.info("%s left the group %s (%s)", gone.client_id, name, peer.address)
            if not table:
                del self._members[name]
            else:
                self._tell(name)
        if not mine:
            self._of_peer.pop(peer, None)

    def upkeep(self) -> None:
        """Remove silent members and expired locks. O(members and locks)."""
        now_s = self._clock.monotonic_s()
        silent = [
            (one.peer, group)
            for group, table in self._members.items()
            for one in table.values()
            if now_s - one.seen_s > SILENT_S_MAX
        ]
        for peer, group in silent:
            self.leave(peer, group)
        expired = [key for key, (_, since_s) in self._locks.items() if now_s - since_s > LOCK_S_MAX]
        for key in expired:
            del self._locks[key]

    def names(self) -> list[str]:
        """Return the groups that have a member, in order."""
        return sorted(self._members)

    def members_of(self, group: str) -> list[Member]:
        """Return the members of a group."""
        return list(self._members.get(group, {}).values())

    def client_ids(self, group: str) -> list[str]:
        """Return the ids of a group's clients, each once, in order."""
        return sorted({member.client_id for member in self._members.get(group, {}).values()})

    def subscription(self, group: str, topic: str) -> SubscribedTopic | None:
        """Return the newest subscription of a group's members to a topic; None without one."""
        members = self._members.get(group, {}).values()
        found = (one.topics[topic] for one in members if topic in one.topics)
        return max(found, key=lambda one: one.version, default=None)

    def lock(self, client: str, queues: Iterable[QueueKey]) -> list[QueueKey]:
        """Lock queues for a client; return those that it has. A renewal is the same call."""
        now_s = self._clock.monotonic_s()
        held: list[QueueKey] = []
        for key in queues:
            if key not in self._locks and len(self._locks) >= LOCKS_MAX:
                continue
            owner, since_s = self._locks.get(key, (client, now_s))
            if owner == client or now_s - since_s > LOCK_S_MAX:
                self._locks[key] = client, now_s
                held.append(key)
        return held

    def unlock(self, client: str, queues: Iterable[QueueKey]) -> None:
        """Release the locks that a client has; those of others stay."""
        for key in queues:
            if self._locks.get(key, ("", 0.0))[0] == client:
                del self._locks[key]

    def _tell(self, group: str) -> None:
        for member in list(self._members[group].values()):
            if not member.is_broadcasting:
                self._changed(member.peer, group)


def _word(data: Mapping[str, Any], name: str, default: str) -> str:
    value = data.get(name)
    return value if isinstance(value, str) else default


def _topics(data: Mapping[str, Any]) -> dict[str, SubscribedTopic]:
    found: dict[str, SubscribedTopic] = {}
    for row in objects_of(data, "subscriptionDataSet"):
        expression, kind = row.get("subString"), row.get("expressionType")
        version = row.get("subVersion")
        found[text_of(row, "topic")] = SubscribedTopic(
            expression if isinstance(expression, str) else "*",
            kind if isinstance(kind, str) else None,
            version if isinstance(version, int) else 0,
        )
    return found


def _expressions(member: Member) -> dict[str, tuple[str, str | None]]:
    return {topic: (one.expression, one.kind) for topic, one in member.topics.items()}
