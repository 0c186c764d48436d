"""File segments over a store whose objects can grow: one object per segment, written in place.

Why no owner can change what another one published (decision 0002 has the long form):

- An owner that is `alone` knows that every earlier owner has ended. Such an owner continues their
  segments, and overwrites what lies after the published end. Later owners see it while it lives.
- An owner that is not alone never continues a segment of another epoch. An earlier owner that was
  only paused can then write after its own published end, in files that the newer one never opens.
- A segment begins in a new file, made exclusively. If the file is there already, an owner that is
  alone asks whether it still owns the tier *after* it has seen the file. If it does, the file is
  not a newer owner's, since an owner takes its epoch before it writes; so a dead owner left it.
- An owner that is not alone cannot tell. It asks whether it was fenced itself, and whether the
  other owner has ended by now. If neither holds, it stops with a sentence that says what to do.
- It stops in the same way before a segment whose name was used before (after a tail cut): an
  earlier owner may have been paused when it was about to delete the file that had the name.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from provider.clock import Clock
from provider.errors import AlreadyExists, NotFound, Unavailable
from provider.file_segments import Placement, SegmentSlice, SegmentsOwner
from provider.object_store import Append, AppendingStore
from provider.ranges import ByteRange

LOCK_NAME = "@lock"
"""Owners register under it for as long as they live; decision 0002."""

PIECE_BYTES = 4 << 20
"""What is copied at once."""

REGISTER_RETRY_S = 0.05
"""Between questions whether an earlier owner has ended, in seconds."""


class InPlaceDriver:
    """`SegmentsDriver` for a store whose objects grow; one for each ownership.

    `prepare` costs one `register`. `open` costs one, and one more every 50 ms while an earlier
    owner lives, for `takeover_wait_s_max` seconds at most; then the segments are written beside
    that owner. Cancelling either leaves the store registered.
    """

    def __init__(self, store: AppendingStore, *, clock: Clock, takeover_wait_s_max: float) -> None:
        self._store = store
        self._clock = clock
        self._wait_s_max = takeover_wait_s_max

    def __repr__(self) -> str:
        return f"<InPlaceDriver: {self._store!r}>"

    async def prepare(self) -> None:
        """Register before the epoch is taken, so that later owners see us; decision 0002."""
        await self._is_alone()

    async def open(self, owner: SegmentsOwner) -> "InPlaceSegments":
        """The segments of `owner`; only an answer from after the fence says whether it is alone."""
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
    """`FileSegments` whose objects are called as the segments are.

    `write` costs one `append`, plus one `size` for each segment that it begins if one of their
    files was left by an owner that died; a write that finds such a file while the other owner still
    lives costs two requests more each time. Cancelling it leaves an unknown outcome (S2).

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

        `alone` is what `AppendingStore.register` answered after the epoch was taken; `verify_owner`
        asks the journal, and raises `Fenced` if a newer owner has the tier. `ask_alone` asks
        `register` again, each time that a file of another owner is in the way.
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
            Unavailable: unknown outcome; or the file of a new segment was left by an owner that
                may still live, or may still be deleted by one.
            Fenced: a newer owner has the tier.
        """
        for part in slices:
            if part.position > 0:
                self._taken_over.discard(part.segment)
            elif part.reused and not await self._is_alone_by_now():
                raise Unavailable(
                    "the file of a new segment had its name before a cut, and another owner may "
                    "still delete it; end that process, and it goes on",
                    part.segment,
                )
        try:
            await self._store.append(self._appends(slices))
        except AlreadyExists as error:
            if not await self._is_alone_by_now():
                raise Unavailable(
                    "a file with the name of a new segment was left by another owner that may "
                    "still live; end that process, and it goes on",
                    error.path,
                ) from error
            await self._take_over(slices)
            await self._store.append(self._appends(slices))
        return [Placement(part.segment, part.position) for part in slices]

    async def preserve(self, copies: Mapping[str, str]) -> list[str]:
        """Copy files whose names later segments may have; `FileSegments.preserve`.

        Reads and writes every byte of them, in pieces of 4 MiB, so it needs as much room.
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
    def forsaken(self) -> list[str]:
        """None: what was written at an end is written again; `FileSegments.forsaken`."""
        return []

    def forsake(self, placements: Sequence[Placement]) -> None:
        """Nothing, for the same reason."""
        del placements

    async def earlier_objects(self) -> list[str]:
        """None: every object has its segment's name. No request."""
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
        """Whether every earlier owner has ended. Nothing is asked any more once one answer is yes.

        Raises:
            Fenced: a newer owner has the tier; a fenced owner must not wait.
        """
        if not self._alone and self._ask_alone is not None:
            self._alone = await self._ask_alone()
        if not self._alone:
            await self._verify_owner()
        return self._alone

    async def _take_over(self, slices: Sequence[SegmentSlice]) -> None:
        """See which files are there, then make sure that no newer owner can have made them."""
        seen: set[str] = set()
        for name in dict.fromkeys(part.segment for part in slices if part.position == 0):
            try:
                await self._store.size(name)
                seen.add(name)
            except NotFound:
                continue
        await self._verify_owner()
        self._taken_over |= seen
