"""Reports of jobs, as values that need no Arrow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from container.errors import Finding
from container.names.queue_id import QueueId


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Findings of an audit, and the amount that it verified."""

    cluster: str
    broker: str
    findings: Sequence[Finding]
    counts: Mapping[str, int]
    """By name: queues, messages, bytes, units, extents, index_files, index_items."""
    changed: Sequence[QueueId] = ()
    """Queues that changed each time they were judged, or were deleted: nothing is reported of
    them."""
    findings_more: int = 0
    """Findings beyond the first 1,000 of a split, which are not listed."""

    @property
    def summary(self) -> dict[str, object]:
        """All but the findings themselves, for programs."""
        return {
            "cluster": self.cluster,
            "broker": self.broker,
            **self.counts,
            "findings": len(self.findings) + self.findings_more,
            "not_judged": [str(queue) for queue in self.changed],
        }


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file that a rebuild made, or could not make."""

    path: str
    """Relative to the broker's directory."""
    bytes: int
    fault: str = ""
    """Why it was not made; "" if it was."""


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """Result of a rebuild, or of its dry run."""

    cluster: str
    broker: str
    files: Sequence[MadeFile]
    messages: int
    """Messages that were read for it."""
    findings: Sequence[Finding]
    """Damage that was met, of which the files cannot know."""
    makes_metadata: bool
    """Whether a journal was made, too."""
    is_dry: bool
    """Nothing was written."""

    @property
    def faults(self) -> Sequence[MadeFile]:
        """The files that could not be made."""
        return [file for file in self.files if file.fault]

    @property
    def summary(self) -> dict[str, object]:
        """All but the files and findings themselves, for programs."""
        made = [file for file in self.files if not file.fault]
        return {
            "cluster": self.cluster,
            "broker": self.broker,
            "messages": self.messages,
            "files": len(made),
            "bytes": sum(file.bytes for file in made),
            "not_made": len(self.faults),
            "findings": len(self.findings),
            "metadata": self.makes_metadata,
            "dry_run": self.is_dry,
        }
