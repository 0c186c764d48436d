"""File segments over any object store: all slices of a round are in one new, immutable object.

Such an object is a *part*. Several queues share it, with the units beside the records of the same
commit, so a round over many queues of few messages costs one request. It needs P1 to P9 of
`ObjectStore`, and neither `append` nor `register`.

Proof that no owner can change bytes that another one published: a part is created by `create`,
which replaces nothing, under a name with the owner's epoch and a nonce that is never used for other
bytes. So every owner may continue every segment, even beside an earlier owner that still lives.

Orphans: a write without a reply, or one that was never published, may leave a part without a
reference. Its name is kept in `abandoned` while its owner lives. A later owner finds it by its
epoch, in one listing of `@parts/`. Parts are shared, so no operation on one queue may delete one. A
part is garbage when no extent of any queue names it, in the state or in a manifest.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, Self

from provider.errors import AlreadyExists, NotFound, Unavailable
from provider.file_segments import Placement, SegmentSlice, SegmentsOwner
from provider.object_store import Buffer, ObjectStore

PARTS_PREFIX = "@parts/"
OFFLOAD_PREFIX = "@offload/"
"""Prefix of parts in a second store. The next component is the tier's home in it."""
HOME_BYTES = 8
EPOCH_DIGITS = 10
NONCE_BYTES = 16

_PART = re.compile(
    rf"(?:{PARTS_PREFIX}|{OFFLOAD_PREFIX}([0-9a-f]{{{2 * HOME_BYTES}}})/)"
    rf"([0-9]{{{EPOCH_DIGITS}}})/([0-9a-f]{{{2 * NONCE_BYTES}}})(?:/(.+))?\Z"
)


class NonceSource(Protocol):
    """Part of `random.Random` that names need."""

    def randbytes(self, n: int, /) -> bytes:
        """Return `n` random bytes."""
        ...


class PartName(NamedTuple):
    """Name of a part: `@parts/<epoch>/<nonce>`, followed by the segment's name if it has only one.

    In a second store the name begins with `@offload/<home>/`.
    """

    epoch: int
    """Epoch of the owner that created it."""
    nonce: str
    """16 random bytes, hexadecimal."""
    segment: str = ""
    """RocketMQ's name of the sealed segment that it holds; "" if it is shared."""
    home: str = ""
    """8 random bytes, hexadecimal, of one tier in a second store; "" in the first one."""

    def __str__(self) -> str:
        whole = f"/{self.segment}" if self.segment else ""
        return f"{parts_prefix(self.home)}{self.epoch:0{EPOCH_DIGITS}d}/{self.nonce}{whole}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse a name; None if it is not the name of a part."""
        found = _PART.match(name)
        return cls(int(found[2]), found[3], found[4] or "", found[1] or "") if found else None


def parts_prefix(home: str = "") -> str:
    """Return the prefix of all parts, in the first store or in a home of the second."""
    return f"{OFFLOAD_PREFIX}{home}/" if home else PARTS_PREFIX


class PackedDriver:
    """`SegmentsDriver` for stores of immutable objects. Costs no request."""

    def __init__(self, store: ObjectStore, *, rng: NonceSource) -> None:
        """Create a driver. `rng` must differ from other owners', so that nonces are unique."""
        self._store = store
        self._rng = rng

    def __repr__(self) -> str:
        return f"<PackedDriver: {self._store!r}>"

    async def prepare(self) -> None:
        """Do nothing: no owner can change bytes of another one, so nothing precedes the fence."""

    async def open(self, owner: SegmentsOwner) -> "PackedSegments":
        """Return the segments of `owner` at once."""
        return PackedSegments(self._store, epoch=owner.epoch, rng=self._rng)


class PackedSegments:
    """`FileSegments` with one part for each call of `write`.

    Memory: none between calls. A call holds its slices, and two more copies of them while it
    settles the outcome of a `create`.
    """

    def __init__(self, store: ObjectStore, *, epoch: int, rng: NonceSource, home: str = "") -> None:
        """Write for the owner of `epoch`, below `home` of a second store if given."""
        self._store = store
        self.home = home
        self._epoch = epoch
        self._rng = rng
        self.abandoned: list[str] = []
        """Possible parts of failed calls; `FileSegments.abandoned`. 100 bytes of memory each."""
        self.parts = 0
        """Number of durable parts."""
        self.settled = 0
        """Number of creates with an unknown outcome that were settled."""

    def __repr__(self) -> str:
        return f"<PackedSegments epoch {self._epoch}: {self.parts} parts, {self.settled} settled>"

    @property
    def extents_grow(self) -> bool:
        """False: the next slice is in another part."""
        return False

    @property
    def has_segment_names(self) -> bool:
        """False: a part's name has the epoch of its owner, and is unique."""
        return False

    async def write(
        self, slices: Sequence[SegmentSlice], *, alone: bool = False
    ) -> list[Placement]:
        """Make all slices durable in one part, in their order; `FileSegments.write`.

        `alone`: the part's name ends with the segment's name, and is still unique.

        Costs one `create`. If its outcome is unknown, costs one more with the same bytes, and a
        `read` of the whole part if the name is taken. Every call uses a new name, so a retry with
        the same slices is safe at any time, also while an earlier call is under way.

        Raises:
            Unavailable: unknown outcome; call again (S2). A part that landed, or lands later, has
                no reference.
            Denied: the storage refuses the request.

        Cancelling has the same meaning as `Unavailable`.
        """
        if not slices:
            return []
        nonce = self._rng.randbytes(NONCE_BYTES).hex()
        segment = slices[0].segment if alone else ""
        name = str(PartName(self._epoch, nonce, segment, self.home))
        try:
            await self._make(name, [buffer for part in slices for buffer in part.buffers])
        except BaseException:
            self.abandoned.append(name)
            raise
        self.parts += 1
        placements: list[Placement] = []
        at = 0
        for part in slices:
            placements.append(Placement(name, at))
            at += sum(len(buffer) for buffer in part.buffers)
        return placements

    def abandon(self, placements: Sequence[Placement]) -> None:
        """Add parts that will not be published to `abandoned`; `FileSegments.abandon`."""
        self.abandoned.extend({one.object_name: None for one in placements})

    async def preserve(self, copies: Mapping[str, str]) -> list[str]:
        """Do nothing: no write changes an object, and names are unique."""
        del copies
        return []

    async def earlier_objects(self) -> list[str]:
        """List all parts of earlier epochs; `FileSegments.earlier_objects`. One listing.

        Memory: their names, about 100 bytes each.
        """
        listed = await self._store.list(parts_prefix(self.home))
        parts = ((one.name, PartName.parse(one.name)) for one in listed)
        return [name for name, part in parts if part is not None and part.epoch < self._epoch]

    def must_roll(self, segment_epoch: int) -> bool:
        """False: no owner writes to objects of another one; `FileSegments.must_roll`."""
        del segment_epoch
        return False

    async def _make(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Create the part. If the outcome is unknown, settle whether it exists and is durable.

        A visible part is not yet known to be durable. A second create with the same bytes settles
        both: it creates the part, or `AlreadyExists` proves the existing one durable (P9).
        """
        try:
            await self._store.create(name, buffers)
        except Unavailable:
            self.settled += 1
        except AlreadyExists:
            await self._compare(name, buffers)
            return
        else:
            return
        try:
            await self._store.create(name, buffers)
        except AlreadyExists:
            await self._compare(name, buffers)

    async def _compare(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Return if the object of that name has these bytes.

        Raises:
            Unavailable: the bytes differ or the object is gone: another writer has the same nonce,
                or a newer owner deleted the unpublished part. The next call uses another name.
        """
        try:
            found = await self._store.read(name)
        except NotFound as error:
            raise Unavailable("a part was deleted while it was made", name) from error
        if bytes(found) != b"".join(buffers):
            raise Unavailable("another writer has made a part of the same name", name)
