"""What following a store cost and found so far."""

from collections.abc import Sequence
from dataclasses import dataclass, field

FINDINGS_KEPT_MAX = 1000


@dataclass(slots=True)
class ScanStatistics:
    """What looking cost and found so far."""

    polls: int = 0
    queue_looks: int = 0
    """Ends of queues that were looked at, over all polls."""
    directory_looks: int = 0
    looks_anew: int = 0
    """Looks that took nothing from earlier ones, for messages seemed to be lost."""
    excluded_topics: int = 0
    made_bytes: int = 0
    """Memory of units that were made from the CommitLog and are not tiered."""
    pinned_bytes: int = 0
    pins_dropped_untiered: int = 0
    bodies_damaged: int = 0
    """Messages that were read to be tiered and whose checksum differs, if that is compared."""
    findings: list[str] = field(default_factory=list[str])
    """Sentences for people, oldest first; bounded."""
    troubles: list[str] = field(default_factory=list[str])
    """Sentences about what keeps whole topics from being looked for now; gone when it is over."""

    def find(self, findings: Sequence[str]) -> None:
        """Keep the sentences that are new."""
        if not findings:
            return
        new = [finding for finding in dict.fromkeys(findings) if finding not in self.findings]
        self.findings = [*self.findings, *new][-FINDINGS_KEPT_MAX:]
