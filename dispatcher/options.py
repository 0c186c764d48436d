"""Options of the dispatcher: sizes of batches and rounds, memory bounds, pauses and timeouts."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from container.queue.point_reads import READ_BYTES_MAX
from container.record.unit import UNIT_BYTES
from provider.setting import MIB, Kind, setting

Backfill = Literal["all", "none"] | timedelta
"""First offset of a queue that the tier does not have: "all": its oldest local message; "none":
its end; a duration: its first message that is not older."""

DRAIN_PATIENCE_S = 60.0
"""Seconds without a landed commit after which `drain` gives up."""
COMPARED_BYTES_MAX = 1 << 20
"""Bytes of records of each side that a comparison holds at once. One larger record is held
alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchOptions:
    """Sizes, bounds and pauses of dispatching.

    The three `batch_*` limits close a *batch*: they decide when a queue is due, and have the
    meaning of RocketMQ's keys. A queue with a backlog commits up to `batches_per_commit_max`
    batches at once. The reason is throughput: 4,096 messages with bodies of 100 B are under 1 MB,
    and a commit costs one journal entry and three syncs. Commits of one such batch cannot reach
    1.6 million messages a second; commits of eight can.

    Raises:
        ValueError: the sizes contradict each other; the sentence names them and the reason.
    """

    batch_messages_max: int = setting(
        "tieredStoreGroupCommitCount",
        Kind.COUNT,
        4096,
        "Number of waiting messages at which a queue's batch is committed.",
        unit="messages",
        object_default=1 << 20,
    )
    batch_bytes_max: int = setting(
        "tieredStoreGroupCommitSize",
        Kind.BYTES,
        4 * MIB,
        "Number of waiting bytes at which a queue's batch is committed.",
        object_default=64 * MIB,
    )
    batch_age_s_max: float = setting(
        "tieredStoreGroupCommitTimeout",
        Kind.MILLISECONDS,
        500,
        "Longest wait of a message for its batch (RocketMQ: 30000). In a directory the first one "
        "after such a pause does not wait.",
        least=0,
        object_default=75_000,
    )
    """RocketMQ's default of 30 s would keep a lone message unreadable that long. Here it must be
    readable from a POSIX tier within a second."""
    first_at_once: bool = False
    """Whether the first message after a silence of `batch_age_s_max` is due at once, and the next
    ones that long after its round began. A lone message is then in the tier as soon as it is
    durable, and rounds that are due by age are as far apart as before. Not for stores that charge
    for each round."""
    batches_per_commit_max: int = setting(
        "tieredStoreBatchesPerCommit",
        Kind.COUNT,
        8,
        "Maximum number of batches in one commit of a queue that has a backlog.",
        unit="batches",
    )
    bytes_in_flight_max: int = setting(
        "tieredStoreBytesInFlight",
        Kind.BYTES,
        64 * MIB,
        "Maximum bytes that are read and not yet durable, over all queues; memory is twice that.",
        object_default=128 * MIB,
    )
    """Counts records and units. A single larger message is still committed, in a round of its
    own."""
    rounds_max: int = 2
    """Concurrent rounds: one is read and planned while another is written and synced."""
    round_queues_max: int = 1024
    """Most queues in one round."""
    boarding_share: float = 0.5
    """Share of the age limit from which on a queue joins a round that other queues make due. A
    smaller share makes fewer rounds, each of more queues."""
    round_bytes_due: int = 0
    """Bytes of all waiting queues together that make all of them due. 0: no such limit."""
    references_max: int = setting(
        "tieredStoreWaitingMax",
        Kind.COUNT,
        1 << 20,
        "Maximum number of waiting messages that are indexed in memory (20 bytes each), over all "
        "queues.",
        unit="messages",
    )
    """Beyond it, each queue keeps 256."""
    poll_s_max: float = 0.2
    """Longest wait for the hot log between two polls, in seconds. With the age limit it bounds the
    delay of a message."""
    backfill: Backfill = setting(
        "tieredStoreBackfill",
        Kind.BACKFILL,
        "all",
        "Where the first start begins: all, none, or messages of a duration like 36h or 7d "
        "(RocketMQ: 2 minutes).",
    )
    """Applies to queues that exist when the dispatcher starts and that the tier does not have.
    Later queues begin at their first message."""
    openings_max: int = 4
    """Concurrent workers that open queues and compare them with the tier."""
    opened_together_max: int = 256
    """Queues that one such worker compares at once, by shared requests."""
    compared_messages_max: int = 3
    """Newest tiered messages that opening a queue compares with the hot log, besides samples of
    older ones. 0: nothing is compared."""
    message_bytes_max: int = (4 << 20) + (64 << 10)
    """Largest record of the broker, in bytes. Used by `memory_bytes_max` only."""
    backoff_s_min: float = 0.1
    """Pause after the first failure, in seconds. Each further failure doubles it."""
    backoff_s_max: float = 30.0
    """Longest pause between two attempts, in seconds."""
    close_s_max: float = setting(
        "tieredStoreShutdownTimeout",
        Kind.MILLISECONDS,
        10_000,
        "Maximum time that a stop spends on committing the backlog.",
        least=0,
    )

    def __post_init__(self) -> None:
        for name in (
            "batch_messages_max", "batch_bytes_max", "batches_per_commit_max", "rounds_max",
            "round_queues_max", "references_max", "poll_s_max", "openings_max", "backoff_s_min",
            "message_bytes_max", "opened_together_max",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        for name in (
            "batch_age_s_max", "boarding_share", "compared_messages_max", "close_s_max",
            "round_bytes_due",
        ):  # fmt: skip
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.rounds_max * self.batch_bytes_max > self.bytes_in_flight_max:
            raise ValueError(
                f"bytes_in_flight_max ({self.bytes_in_flight_max}) must hold one batch for each "
                f"round: at least rounds_max x batch_bytes_max = "
                f"{self.rounds_max * self.batch_bytes_max}"
            )
        if self.references_max < self.batch_messages_max:
            raise ValueError(
                f"references_max ({self.references_max}) must hold the references of one batch: "
                f"at least batch_messages_max = {self.batch_messages_max}"
            )
        if self.backoff_s_max < self.backoff_s_min:
            raise ValueError(
                f"backoff_s_max ({self.backoff_s_max}) must not be below backoff_s_min "
                f"({self.backoff_s_min})"
            )
        if isinstance(self.backfill, timedelta) and self.backfill < timedelta(0):
            raise ValueError(f"backfill must reach into the past, not {self.backfill}")

    @property
    def round_bytes_max(self) -> int:
        """Most bytes of one round, so that `rounds_max` of them fit in flight."""
        return self.bytes_in_flight_max // self.rounds_max

    @property
    def commit_messages_max(self) -> int:
        """Most messages of one queue in one round."""
        return self.batches_per_commit_max * self.batch_messages_max

    @property
    def commit_bytes_max(self) -> int:
        """Most bytes of one queue in one round, unless its first message alone is larger."""
        return min(self.batches_per_commit_max * self.batch_bytes_max, self.round_bytes_max)

    @property
    def memory_bytes_max(self) -> int:
        """Memory bound of dispatching, in bytes, without 5 KiB for each queue with a backlog.

        The sum of three terms:

        - `2 x bytes_in_flight_max`: the bytes, and as much again for a batch's columns, which are
          at most 72 bytes for each record of at least 91.
        - `2 x 20 x references_max`: an array of references and its longer successor.
        - `3 x openings_max x max(COMPARED_BYTES_MAX, message_bytes_max)`: tiered records, hot
          records and a copy, while queues are opened one by one. For queues that are opened
          together it is `openings_max x (READ_BYTES_MAX + 3 x COMPARED_BYTES_MAX)`, if more.
        """
        alone = 3 * max(COMPARED_BYTES_MAX, self.message_bytes_max)
        together = READ_BYTES_MAX + 3 * COMPARED_BYTES_MAX
        compared = self.openings_max * max(alone, together)
        return 2 * self.bytes_in_flight_max + 2 * UNIT_BYTES * self.references_max + compared
