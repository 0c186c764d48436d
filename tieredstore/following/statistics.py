"""Statistics of following a store: costs and findings."""

from collections.abc import Sequence
from dataclasses import dataclass, field

FINDINGS_KEPT_MAX = 1000


@dataclass(slots=True)
class ScanStatistics:
    """Costs and findings of polls so far."""

    polls: int = 0
    queue_looks: int = 0
    """Queue ends that were read, over all polls."""
    directory_looks: int = 0
    looks_anew: int = 0
    """Polls that reused no earlier state, for messages that seemed to be lost."""
    excluded_topics: int = 0
    made_bytes: int = 0
    """Memory in bytes of units that were rebuilt from the CommitLog and are not tiered."""
    pinned_bytes: int = 0
    pins_dropped_untiered: int = 0
    bodies_damaged: int = 0
    """Messages read for the tier whose checksum differs, if it is verified."""
    findings: list[str] = field(default_factory=list[str])
    """Findings as sentences, the oldest first; bounded."""
    troubles: list[str] = field(default_factory=list[str])
    """Present causes that keep whole topics from being scanned, as sentences."""

    def find(self, findings: Sequence[str]) -> None:
        """Add the sentences that are new."""
        if not findings:
            return
        new = [finding for finding in dict.fromkeys(findings) if finding not in self.findings]
        self.findings = [*self.findings, *new][-FINDINGS_KEPT_MAX:]
