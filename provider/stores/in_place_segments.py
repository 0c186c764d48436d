"""File segments over a store whose objects can grow: one object per segment, written in place.

Proof that no owner can change bytes that another one published (details in decision 0002):

- An owner that is `alone` knows that every earlier owner has ended. Such an owner continues their
  segments, and overwrites bytes after the published end. Later owners detect it while it lives.
- An owner that is not alone never continues a segment of another epoch. An earlier, paused owner
  can then only write after its own published end, in files that the newer one never opens.
- A segment begins in a new file, created exclusively. If the file exists already, an owner that is
  alone verifies its ownership *after* it has seen the file. If it still owns the tier, the file is
  not a newer owner's, since an owner takes its epoch before it writes. So a dead owner left it.
- An owner that is not alone cannot decide that. It verifies its ownership, and checks whether the
  other owner has ended by now. If the other owner may live, it raises `Unavailable` with a remedy.
- It raises the same error before a segment whose name was used before (after a tail truncation):
  an earlier owner may have been paused just before it deletes the file of that name.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from provider.clock import Clock
from provider.errors import AlreadyExists, NotFound, Unavailable
from provider.file_segments import Placement, SegmentSlice, SegmentsOwner
from provider.object_store import Append, AppendingStore
from provider.ranges import ByteRange

LOCK_NAME = "@lock"
"""Name that owners register under while they live; decision 0002."""

PIECE_BYTES = 4 << 20
"""Bytes of one step of a copy."""

REGISTER_RETRY_S = 0.05
"""Seconds between two checks whether an earlier owner has ended."""


class InPlaceDriver:
    """`SegmentsDriver` for a store whose objects grow. One instance for each ownership.

    `prepare` costs one `register`. `open` costs one, and one more every 50 ms while an earlier
    owner lives, for at most `takeover_wait_s_max` seconds. After that the segments are written
    beside that owner. Cancelling either call leaves the store registered.
    """

    def __init__(self, store: AppendingStore, *, clock: Clock, takeover_wait_s_max: float) -> None:
        self._store = store
        self._clock = clock
        self._wait_s_max = takeover_wait_s_max

    def __repr__(self) -> str:
        return f"<InPlaceDriver: {self._store!r}>"

    async def prepare(self) -> None:
        """Register before the epoch is taken, so that later owners see this one; decision 0002."""
        await self._is_alone()

    async def open(self, owner: SegmentsOwner) -> "InPlaceSegments":
        """Return the segments of `owner`. Registers again: only a result after the fence counts."""
        waited_until_s = self._clock.monotonic_s() + self._wait_s_max
        alone = await self._is_alone()
        while not alone and self._clock.monotonic_s() < waited_until_s:
            await self._clock.sleep(REGISTER_RETRY_S)
            alone = await self._is_alone()
        return InPlaceSegments(
            self._store,
            alone=alone,
            epoch=owner.epoch,
            verify_owner=owner.verify_owner,
            ask_alone=self._is_alone,
        )

    async def _is_alone(self) -> bool:
        return await self._store.register(LOCK_NAME)


class InPlaceSegments:
    """`FileSegments` whose objects have the names of the segments.

    `write` costs one `append`. It costs one more `append` and one `size` for each new segment if a
    dead owner left one of their files. A write that finds such a file while the other owner lives
    costs two more requests each time. Cancelling leaves an unknown outcome (S2).

    Memory: one name for each file taken over, until the segment's second write.
    """

    def __init__(
        self,
        store: AppendingStore,
        *,
        alone: bool,
        epoch: int,
        verify_owner: Callable[[], Awaitable[None]],
        ask_alone: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Write for the owner of `epoch`.

        `alone` is the result of `AppendingStore.register` after the epoch was taken. `verify_owner`
        reads the journal, and raises `Fenced` if a newer owner has the tier. `ask_alone` calls
        `register` again whenever a file of another owner blocks a write.
        """
        self._store = store
        self._alone = alone
        self._epoch = epoch
        self._verify_owner = verify_owner
        self._ask_alone = ask_alone
        self._taken_over: set[str] = set()

    def __repr__(self) -> str:
        beside = "alone" if self._alone else "beside an earlier owner"
        return f"<InPlaceSegments epoch {self._epoch}, {beside}>"

    @property
    def extents_grow(self) -> bool:
        """True: a segment is one file."""
        return True

    @property
    def has_segment_names(self) -> bool:
        """True: a segment is the file of its name."""
        return True

    async def write(
        self,
        slices: Sequence[SegmentSlice],
        *,
        alone: bool = False,  # noqa: ARG002 - files have the segments' names
    ) -> list[Placement]:
        """Make all slices durable; `FileSegments.write`.

        Raises:
            OutOfRange: a segment is shorter than its published size: bytes were lost.
            Unavailable: unknown outcome; or an owner that may still live left the file of a new
                segment, or may still delete it.
            Fenced: a newer owner has the tier.
        """
        for part in slices:
            if part.position > 0:
                self._taken_over.discard(part.segment)
            elif part.reused and not await self._is_alone_by_now():
                raise Unavailable(
                    "the file of a new segment had its name before a cut, and another owner may "
                    "still delete it; end that process to continue",
                    part.segment,
                )
        try:
            await self._store.append(self._appends(slices))
        except AlreadyExists as error:
            if not await self._is_alone_by_now():
                raise Unavailable(
                    "a file with the name of a new segment was left by another owner that may "
                    "still live; end that process to continue",
                    error.path,
                ) from error
            await self._take_over(slices)
            await self._store.append(self._appends(slices))
        return [Placement(part.segment, part.position) for part in slices]

    async def preserve(self, copies: Mapping[str, str]) -> list[str]:
        """Copy files whose names later segments may have; `FileSegments.preserve`.

        Reads and writes every byte, in pieces of 4 MiB. Needs as much disk space.
        """
        made: list[str] = []
        for name, copy in copies.items():
            try:
                size_bytes = await self._store.size(name)
            except NotFound:
                continue
            for at in range(0, size_bytes, PIECE_BYTES):
                end = min(at + PIECE_BYTES, size_bytes)
                piece = await self._store.read(name, ByteRange(at, end))
                await self._store.append([Append(copy, at, (piece,))])
            made.append(copy)
        return made

    @property
    def abandoned(self) -> list[str]:
        """Empty: bytes after the published end are overwritten; `FileSegments.abandoned`."""
        return []

    def abandon(self, placements: Sequence[Placement]) -> None:
        """Do nothing: bytes after the published end are overwritten; `FileSegments.abandon`."""
        del placements

    async def earlier_objects(self) -> list[str]:
        """Return an empty list: every object has its segment's name. No request."""
        return []

    def must_roll(self, segment_epoch: int) -> bool:
        """Whether a segment of `segment_epoch` may not be continued; `FileSegments.must_roll`."""
        return not self._alone and segment_epoch != self._epoch

    def _appends(self, slices: Sequence[SegmentSlice]) -> list[Append]:
        begun = {part.segment for part in slices if part.position == 0} - self._taken_over
        return [
            Append(
                part.segment,
                part.position,
                part.buffers,
                new=part.position == 0 and part.segment in begun,
            )
            for part in slices
        ]

    async def _is_alone_by_now(self) -> bool:
        """Whether every earlier owner has ended. Registers again until the first True.

        Raises:
            Fenced: a newer owner has the tier; a fenced owner must not wait.
        """
        if not self._alone and self._ask_alone is not None:
            self._alone = await self._ask_alone()
        if not self._alone:
            await self._verify_owner()
        return self._alone

    async def _take_over(self, slices: Sequence[SegmentSlice]) -> None:
        """Find the existing files, then verify the ownership: no newer owner created them."""
        seen: set[str] = set()
        for name in dict.fromkeys(part.segment for part in slices if part.position == 0):
            try:
                await self._store.size(name)
                seen.add(name)
            except NotFound:
                continue
        await self._verify_owner()
        self._taken_over |= seen
