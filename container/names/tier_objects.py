"""Names of metadata and index objects, relative to the broker's directory."""

import re
from typing import NamedTuple, Self

from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import INDEX_QUEUE, parse_segment_name

NUMBER_BITS = 42
"""Bits of the number: 4 TiB of RocketMQ's index files, and some 2 million owners, fit below 2**63.
"""


INDEX_PREFIX = f"{INDEX_QUEUE}/{SegmentType.INDEX.name}/"
"""Directory of all index files, RocketMQ's and ours."""


class IndexBase(NamedTuple):
    """Position of a file in the flat file of all index files: its owner, and its number.

    RocketMQ's files are adjacent there, but RocketMQ also reads files that are not. Bases of files
    that RocketMQ wrote are lower than those of the first owner, so their epoch is 0.
    """

    epoch: int
    """Epoch of the owner that wrote it."""
    number_of_owner: int
    """Number of the file among that owner's files, from 1."""

    @property
    def number(self) -> int:
        """Base in bytes."""
        return self.epoch << NUMBER_BITS | self.number_of_owner

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse an object's name. None if it is not an index file's."""
        parsed = parse_segment_name(name)
        if parsed is None or parsed.type is not SegmentType.INDEX:
            return None
        return cls(parsed.base >> NUMBER_BITS, parsed.base & ((1 << NUMBER_BITS) - 1))


JOURNAL_PREFIX = "@journal/"
SNAPSHOT_PREFIX = "@snapshot/"
MANIFEST_PREFIX = "@manifest/"
BOUNDARY_PREFIX = "@boundary/"
KEPT_PREFIX = "@cut/"
FOLLOWED_PREFIX = "@followed/"
SCRUB_PREFIX = "@scrub/"
OWNER_PREFIX = "@owner/"
MADE_AGAIN = f"{OWNER_PREFIX}made-again-"
"""Prefix of the name of an empty object in a tier that was recreated from an earlier one's files.
"""

SEQUENCE_DIGITS = 20
EPOCH_DIGITS = 10


class EntryName(NamedTuple):
    """A journal entry: `@journal/<sequence>`."""

    sequence: int

    def __str__(self) -> str:
        return f"{JOURNAL_PREFIX}{self.sequence:0{SEQUENCE_DIGITS}d}"


class BoundaryName(NamedTuple):
    """A boundary: `@boundary/<sequence>`. Entries up to it may be deleted. None may be created."""

    sequence: int

    def __str__(self) -> str:
        return f"{BOUNDARY_PREFIX}{self.sequence:0{SEQUENCE_DIGITS}d}"


class ClaimName(NamedTuple):
    """Claim on a tier before its takeover: `@boundary/claim-<epoch>-<nonce>`.

    It lies beside the boundaries, so that one listing shows both. Programs that do not know claims
    ignore it.
    """

    epoch: int
    """Epoch of the future fence."""
    nonce: str
    """16 random bytes, hexadecimal."""

    def __str__(self) -> str:
        return f"{BOUNDARY_PREFIX}claim-{self.epoch:0{EPOCH_DIGITS}d}-{self.nonce}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a name. None if it is not a claim's."""
        found = _CLAIM.match(name)
        return None if found is None else cls(int(found[1]), found[2])


class SnapshotName(NamedTuple):
    """A snapshot of the state after an entry: `@snapshot/<sequence>-<epoch>-<nonce>`."""

    sequence: int
    epoch: int
    nonce: str

    def __str__(self) -> str:
        sequence, epoch = f"{self.sequence:0{SEQUENCE_DIGITS}d}", f"{self.epoch:0{EPOCH_DIGITS}d}"
        return f"{SNAPSHOT_PREFIX}{sequence}-{epoch}-{self.nonce}"


_MANIFEST_TEXT = f"{MANIFEST_PREFIX}%s/%d/%d-%d-%0{SEQUENCE_DIGITS}d-%0{EPOCH_DIGITS}d-%s"


def manifest_text(  # noqa: PLR0917 - what a name says
    queue: QueueId, kind: int, level: int, base: int, epoch: int, nonce: str
) -> str:
    """Text of a `ManifestName`, without creating one."""
    return _MANIFEST_TEXT % (*queue, kind, level, base, epoch, nonce)


class ManifestName(NamedTuple):
    """A manifest: `@manifest/<topic>/<queue>/<type>-<level>-<base>-<epoch>-<nonce>`."""

    queue: QueueId
    type: SegmentType
    level: int
    base: int
    epoch: int
    nonce: str

    def __str__(self) -> str:
        return manifest_text(*self)


MetadataName = EntryName | BoundaryName | SnapshotName | ManifestName

_NUMBERED = re.compile(r"@(journal|boundary)/([0-9]{20})\Z")
_CLAIM = re.compile(r"@boundary/claim-([0-9]{10})-([0-9a-f]{32})\Z")
_SNAPSHOT = re.compile(r"@snapshot/([0-9]{20})-([0-9]{10})-([0-9a-f]{32})\Z")
_MANIFEST = re.compile(
    r"@manifest/([^/]+)/(0|[1-9][0-9]*)/([012])-(0|[1-9][0-9]*)-([0-9]{20})-([0-9]{10})"
    r"-([0-9a-f]{32})\Z"
)
_FOLLOWED = re.compile(r"@followed/([0-9]{10})-([0-9]{20})-([0-9]{20})\Z")
_SCRUB = re.compile(r"@scrub/([0-9]{20})\Z")
ENDED = "ended"
_SIGN = re.compile(r"@owner/([0-9]{10})-([0-9]{20}|ended)\Z")
_REGISTRATION = re.compile(r"@owner/second-([0-9a-f]{32})\Z")
_KEPT = re.compile(r"@cut/([0-9]{10})-([0-9]{20})/(.+)\Z")


class KeptName(NamedTuple):
    """Copy of a truncated segment: `@cut/<epoch>-<sequence>/<segment>`. It has RocketMQ's bytes.

    `sequence` is the journal's at the time of the copy.
    """

    epoch: int
    sequence: int
    segment: str

    def __str__(self) -> str:
        return f"{KEPT_PREFIX}{_when(self.epoch, self.sequence)}/{self.segment}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a name. None if it is not such a copy's."""
        found = _KEPT.match(name)
        if found is None or parse_segment_name(found[3]) is None:
            return None
        return cls(int(found[1]), int(found[2]), found[3])


class FollowedName(NamedTuple):
    """Replay position in the broker's log: `@followed/<epoch>-<sequence>-<position>`.

    Written by the owner of that epoch: everything below the log's `position` is durable since the
    journal's entry `sequence`. It only saves the next owner from reading the log from its
    beginning.
    """

    epoch: int
    sequence: int
    position: int

    def __str__(self) -> str:
        when = _when(self.epoch, self.sequence)
        return f"{FOLLOWED_PREFIX}{when}-{self.position:0{SEQUENCE_DIGITS}d}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a name. None if it is not such an object's."""
        found = _FOLLOWED.match(name)
        return None if found is None else cls(*map(int, found.groups()))


class ScrubName(NamedTuple):
    """End of a run of `tieredstore scrub`: `@scrub/<number>`. The highest number counts."""

    number: int

    def __str__(self) -> str:
        return f"{SCRUB_PREFIX}{self.number:0{SEQUENCE_DIGITS}d}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a name. None if it is not such an object's."""
        found = _SCRUB.match(name)
        return None if found is None else cls(int(found[1]))


class SignName(NamedTuple):
    """Sign of life of an owner: `@owner/<epoch>-<number>`, or `@owner/<epoch>-ended`.

    Numbers grow. `ended` is the last sign of an owner that closed the tier.
    """

    epoch: int
    number: int | None
    """None: the owner has closed the tier."""

    def __str__(self) -> str:
        number = ENDED if self.number is None else f"{self.number:0{SEQUENCE_DIGITS}d}"
        return f"{OWNER_PREFIX}{self.epoch:0{EPOCH_DIGITS}d}-{number}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a name. None if it is not a sign's."""
        found = _SIGN.match(name)
        if found is None:
            return None
        return cls(int(found[1]), None if found[2] == ENDED else int(found[2]))


class RegistrationName(NamedTuple):
    """An owner's registration at the second store: `@owner/second-<nonce>` in the first one."""

    nonce: str

    def __str__(self) -> str:
        return f"{OWNER_PREFIX}second-{self.nonce}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a name. None if it is not a registration's."""
        found = _REGISTRATION.match(name)
        return None if found is None else cls(found[1])


def made_again_name(begun_ms: int) -> str:
    """`@owner/made-again-<when the tier was begun, Unix ms>`."""
    return f"{MADE_AGAIN}{begun_ms}"


def _when(epoch: int, sequence: int) -> str:
    return f"{epoch:0{EPOCH_DIGITS}d}-{sequence:0{SEQUENCE_DIGITS}d}"


def parse_name(name: str) -> MetadataName | None:
    """Parse a name. None if it is not of the metadata (temporary files, unknown objects)."""
    if found := _NUMBERED.match(name):
        kind = EntryName if found[1] == "journal" else BoundaryName
        return kind(int(found[2]))
    if found := _SNAPSHOT.match(name):
        return SnapshotName(int(found[1]), int(found[2]), found[3])
    if found := _MANIFEST.match(name):
        topic, queue, kind, level, base, epoch, nonce = found.groups()
        return ManifestName(
            QueueId(topic, int(queue)),
            SegmentType(int(kind)),
            int(level),
            int(base),
            int(epoch),
            nonce,
        )
    return None
