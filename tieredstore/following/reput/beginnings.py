"""Whether the first record of a queue that nothing else is known of may make it one. Decides.

No checksum covers a record's topic, queue id and offset, so that one damaged record seems to be of
a queue that there is not.
"""

from container.names.queue_id import QueueId
from tieredstore.following.rebuild.record_units import QueueRun, join_runs

ALONE = (
    "The record at position {position} says that it is the message of {queue} at offset {first}, "
    "though the CommitLog has none of the offsets before it and is there from its beginning: it "
    "may be damaged, and counts once the next message of that queue follows."
)


class Beginnings:
    """Records that begin no queue yet, one of each name.

    A log that is there from its first byte has a queue from offset 0 on. One record at another
    offset waits for the next; what else is read of a broker's log tells nothing.
    """

    def __init__(self) -> None:
        self.is_complete = False
        """Whether the log was read from its first byte on, without a hole."""
        self._alone: dict[QueueId, QueueRun] = {}
        self.findings: list[str] = []
        """Sentences for people, until they are taken."""

    def __repr__(self) -> str:
        return f"<Beginnings: {len(self._alone)} alone>"

    def take_findings(self) -> list[str]:
        """The sentences since the last call."""
        taken, self.findings = self.findings, []
        return taken

    def admit(self, run: QueueRun) -> QueueRun | None:
        """What begins the queue of a run of which nothing was read; None: nothing does yet."""
        alone = self._alone.pop(run.queue, None)
        if alone is not None and run.first == alone.end:
            return join_runs([alone, run])
        if not self.is_complete or not run.first or len(run.units) > 1:
            return run
        self._alone[run.queue] = run
        at = int(run.units[0]["position"])
        self.findings.append(ALONE.format(position=at, queue=run.queue, first=run.first))
        return None
