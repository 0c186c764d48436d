"""File segments over any object store: all slices of a round lie in one new, immutable object.

Such an object is a *part*. Several queues share it, units beside the records of the same commit, so
that a round over many thin queues costs one request. It asks of the store what every store has
(P1 to P9 of `ObjectStore`), and neither `append` nor `register`.

Why no owner can change what another one published: a part is made by `create`, which replaces
nothing, under a name that holds the owner's epoch and a nonce and is never used for other bytes. So
every owner may continue every segment, even beside an earlier owner that still lives.

What it leaves. A write whose reply never came, or that was never published, may have made
a part that nothing refers to. Its name is kept (`forsaken`) while its owner lives; a later one
finds it by its epoch, in one listing of `@parts/`. Parts are shared, so nothing that concerns one
queue may delete one: it may go when no extent of any queue names it, in the state or in a manifest.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, Self

from provider.errors import AlreadyExists, NotFound, Unavailable
from provider.file_segments import Placement, SegmentSlice, SegmentsOwner
from provider.object_store import Buffer, ObjectStore

PARTS_PREFIX = "@parts/"
OFFLOAD_PREFIX = "@offload/"
"""Below it lie the parts of a second store; the next component is the tier's home in it."""
HOME_BYTES = 8
EPOCH_DIGITS = 10
NONCE_BYTES = 16

_PART = re.compile(
    rf"(?:{PARTS_PREFIX}|{OFFLOAD_PREFIX}([0-9a-f]{{{2 * HOME_BYTES}}})/)"
    rf"([0-9]{{{EPOCH_DIGITS}}})/([0-9a-f]{{{2 * NONCE_BYTES}}})(?:/(.+))?\Z"
)


class NonceSource(Protocol):
    """The part of `random.Random` that names need."""

    def randbytes(self, n: int, /) -> bytes:
        """`n` random bytes."""
        ...


class PartName(NamedTuple):
    """A part: `@parts/<epoch>/<nonce>`, and the segment's name behind it if it has only one.

    In a second store it begins with `@offload/<home>/`.
    """

    epoch: int
    """Epoch of the owner that made it."""
    nonce: str
    """16 random bytes, hexadecimal."""
    segment: str = ""
    """RocketMQ's name of the closed segment whose bytes it holds; "" if it is shared."""
    home: str = ""
    """8 random bytes, hexadecimal, that one tier has in a second store; "" in the first one."""

    def __str__(self) -> str:
        whole = f"/{self.segment}" if self.segment else ""
        return f"{parts_prefix(self.home)}{self.epoch:0{EPOCH_DIGITS}d}/{self.nonce}{whole}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """What a name says; None if it is not a part's."""
        found = _PART.match(name)
        return cls(int(found[2]), found[3], found[4] or "", found[1] or "") if found else None


def parts_prefix(home: str = "") -> str:
    """What the names of all parts begin with, in the first store or in a home of the second."""
    return f"{OFFLOAD_PREFIX}{home}/" if home else PARTS_PREFIX


class PackedDriver:
    """`SegmentsDriver` for stores of immutable objects. Costs no request."""

    def __init__(self, store: ObjectStore, *, rng: NonceSource) -> None:
        """`rng` must not be in the same state as another owner's: parts would get equal nonces."""
        self._store = store
        self._rng = rng

    def __repr__(self) -> str:
        return f"<PackedDriver: {self._store!r}>"

    async def prepare(self) -> None:
        """Nothing must precede the fence: no owner can change what another one writes."""

    async def open(self, owner: SegmentsOwner) -> "PackedSegments":
        """The segments of `owner`, at once."""
        return PackedSegments(self._store, epoch=owner.epoch, rng=self._rng)


class PackedSegments:
    """`FileSegments` whose slices share a part for each call of `write`.

    Memory: none between calls. A call holds the slices that it was given; while the outcome of a
    `create` is being settled, two more copies of them.
    """

    def __init__(self, store: ObjectStore, *, epoch: int, rng: NonceSource, home: str = "") -> None:
        """Write for the owner of `epoch`; `home`: below this one of a second store."""
        self._store = store
        self.home = home
        self._epoch = epoch
        self._rng = rng
        self.forsaken: list[str] = []
        """Parts that failed calls may have left; `FileSegments.forsaken`. 100 bytes each."""
        self.parts = 0
        """Parts whose outcome is known: they are durable."""
        self.settled = 0
        """Creates with an unclear reply that were settled."""

    def __repr__(self) -> str:
        return f"<PackedSegments epoch {self._epoch}: {self.parts} parts, {self.settled} settled>"

    @property
    def extents_grow(self) -> bool:
        """False: what follows is in another part."""
        return False

    @property
    def has_segment_names(self) -> bool:
        """False: a part's name says which owner made it, and never comes again."""
        return False

    async def write(
        self, slices: Sequence[SegmentSlice], *, alone: bool = False
    ) -> list[Placement]:
        """Make all slices durable in one part, in their order; `FileSegments.write`.

        `alone`: the part's name ends with the segment's, and is as unique as any.

        One `create`. If its reply is unclear, one more with the same bytes, and a `read` of the
        whole part if the name turns out to be taken. Every call takes a new name, so calling it
        again with the same slices is safe at any time, also while an earlier call is on its way.

        Raises:
            Unavailable: unknown outcome; call again (S2). What landed, or lands later, under the
                name that was tried is referred to by nothing.
            Denied: the storage refuses us.

        Cancelling it has the same meaning as `Unavailable`.
        """
        if not slices:
            return []
        nonce = self._rng.randbytes(NONCE_BYTES).hex()
        segment = slices[0].segment if alone else ""
        name = str(PartName(self._epoch, nonce, segment, self.home))
        try:
            await self._make(name, [buffer for part in slices for buffer in part.buffers])
        except BaseException:
            self.forsaken.append(name)
            raise
        self.parts += 1
        placements: list[Placement] = []
        at = 0
        for part in slices:
            placements.append(Placement(name, at))
            at += sum(len(buffer) for buffer in part.buffers)
        return placements

    def forsake(self, placements: Sequence[Placement]) -> None:
        """Remember parts that will not be published; `FileSegments.forsake`."""
        self.forsaken.extend({one.object_name: None for one in placements})

    async def preserve(self, copies: Mapping[str, str]) -> list[str]:
        """Nothing: no write changes what is there, and no name comes again."""
        del copies
        return []

    async def earlier_objects(self) -> list[str]:
        """All its parts of earlier epochs; `FileSegments.earlier_objects`. One listing.

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
        """Create the part; where the reply is unclear, find out whether it is durable.

        A part that can be seen is not yet known to be durable. A second create with the same
        bytes settles both: it makes the part, or `AlreadyExists` vouches for what is there (P9).
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
            Unavailable: it has not, or is gone: another writer has the same nonce, or a newer
                owner has deleted what it found unpublished. The next call takes another name.
        """
        try:
            found = await self._store.read(name)
        except NotFound as error:
            raise Unavailable("a part was deleted while it was made", name) from error
        if bytes(found) != b"".join(buffers):
            raise Unavailable("another writer has made a part of the same name", name)
