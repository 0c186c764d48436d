"""Owner's side of a tier's journal: one sequence of entries, with group commit."""

import asyncio
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from container.errors import NewerVersion, Refused
from container.journal.frame import NONCE_BYTES, Frame, FrameKind, encode_entry
from container.journal.ownership import EntryWriter, Outcome, Permit, StandingBack, take_ownership
from container.journal.reader import JournalReader, Loaded
from container.metadata.codec import encode_operations, join_operations
from container.metadata.operations import Operation, TakeOwnership
from container.metadata.state import StateChange, TierState
from container.names.queue_id import QueueId
from container.names.tier_objects import JOURNAL_PREFIX, EntryName, parse_name
from container.options import JournalOptions
from provider.clock import Clock, RandomSource, wait_at_most
from provider.errors import Closed, Corrupt, Fenced, NotFound, StoreError
from provider.object_store import Buffer, ObjectStore


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """Counters of a journal since its ownership was taken."""

    epoch: int
    sequence: int
    """Number of the last published entry."""
    entries: int
    transactions: int
    bytes: int
    """Bytes of all entries written."""
    waiting: int
    """Transactions that wait for an entry."""
    unsettled: bool
    """Whether an entry was sent whose outcome is still unknown."""
    retries: int
    stood_back: int
    """Number of pauses that yielded to a claim."""
    last_error: str
    """Error that leaves the entry unsettled, or that ended the journal. Empty otherwise."""


class Transaction:
    """Validated transaction, and the callers that wait for it.

    It is settled exactly once: with the number of its entry, or with an error.
    """

    __slots__ = ("_sequence", "change", "payload")

    def __init__(self, change: StateChange, payload: bytes) -> None:
        self.change = change
        self.payload = payload
        self._sequence: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def land(self, sequence: int) -> None:
        """Settle as durable in entry `sequence`. A transaction that failed before stays failed."""
        if not self._sequence.done():  # the journal may end while its last entry is written
            self._sequence.set_result(sequence)

    def fail(self, error: StoreError) -> None:
        """Settle as failed: it will not be acknowledged."""
        self._sequence.set_exception(error)
        self._sequence.exception()  # retrieved: all callers may be cancelled

    async def wait(self) -> int:
        """Wait until it is durable, and return the number of its entry.

        Raises the error that it was settled with. Cancelling has no effect on the transaction.
        """
        await asyncio.wait([self._sequence])
        error = self._sequence.exception()
        if isinstance(error, StoreError):
            raise copy_of(error)
        return self._sequence.result()


def copy_of(error: StoreError) -> StoreError:
    """Copy of an error, so that waiters do not share a traceback."""
    copy = type(error)(error.reason, error.path, error.position)
    copy.__cause__ = error
    return copy


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """Entry with final bytes that is not acknowledged yet."""

    name: EntryName
    raw: bytes
    own_bytes: int
    """Length of `raw` without the copy of the previous entry."""
    transactions: tuple[Transaction, ...]


def gather_entry(
    waiting: deque[Transaction],
    *,
    sequence: int,
    epoch: int,
    before: bytes,
    rng: RandomSource,
    options: JournalOptions,
) -> PendingEntry:
    """Take as many waiting transactions as the limits allow, at least one, in order.

    The entry holds a copy of `before`, the previous entry.
    """
    taken = [waiting.popleft()]
    total = len(taken[0].payload)
    while waiting and len(taken) < options.entry_transactions_max:
        total += len(waiting[0].payload) + 1
        if total > options.entry_bytes_max:
            break
        taken.append(waiting.popleft())
    payload = join_operations([one.payload for one in taken])
    frame = Frame(FrameKind.ENTRY, epoch, sequence, rng.randbytes(NONCE_BYTES), payload)
    raw, own_bytes = encode_entry(frame, before)
    return PendingEntry(EntryName(sequence), raw, own_bytes, tuple(taken))


Listener = Callable[[Sequence[StateChange]], None]
"""Callback for the changes of one entry, which are already installed. It must not fail."""


class Journal:
    """Journal of a tier, for its owner. Created by `take_ownership`, ended by `close`.

    `check` asserts, between any two awaits:

    J1  while the journal is not over, the planned state is the published one with every accepted
        transaction that is not published installed on it, in order;
    J2  the entry in flight has the number after the last published one;
    J3  while a transaction waits, the journal is neither idle nor over;
    J4  the published state is of our epoch, and every entry since our fence is ours.

    A journal that is dropped while it is neither closed nor over emits a `ResourceWarning`.
    """

    _is_open = False  # for `__del__` where `__init__` failed

    def __init__(
        self,
        store: ObjectStore,
        loaded: Loaded,
        *,
        clock: Clock,
        rng: RandomSource,
        options: JournalOptions,
    ) -> None:
        self.loaded = loaded
        """Result of the first read. The journal changes its state."""
        self.options = options
        self._store = store
        self._clock = clock
        self._rng = rng
        self._state = loaded.state
        self._planned = loaded.state.copy()
        self._epoch = loaded.state.broker.epoch
        self.fence = loaded.state.sequence
        """Number of the entry that made this process the owner."""
        self._reader = JournalReader(store, options, clock=clock)
        self._writer = EntryWriter(store, clock=clock, rng=rng, options=options)
        self._listeners: list[Listener] = []
        self._waiting: deque[Transaction] = deque()
        self._entry: PendingEntry | None = None
        self._last = loaded.last
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._ended = asyncio.Event()
        self._over: StoreError | None = None
        self._running = False
        self._closing = asyncio.Event()
        self._claims = StandingBack(self._epoch, clock=clock, seconds_max=options.claim_s_max)
        self._entries = self._transactions = self._bytes = 0
        self._is_open = True

    @classmethod
    async def take_ownership(
        cls,
        store: ObjectStore,
        *,
        clock: Clock,
        rng: RandomSource,
        owner: str,
        cluster: str,
        broker: str,
        options: JournalOptions | None = None,
        imported: Sequence[Operation] = (),
        permit: Permit | None = None,
    ) -> Self:
        """Read or begin the journal, and write the fence that makes this process its owner.

        After that the next entry of an older owner fails with `Fenced`. Costs as
        `JournalReader.load`, and two requests for the fence. An unknown outcome of the fence is
        settled here, however long that takes. Cancelling may leave a fence in the journal, which is
        harmless: the next one has a higher epoch. The fence itself publishes `imported`, so every
        owner of the tier knows the imported files. `permit` is called before each attempt with the
        owner that the attempt would fence. Its exceptions propagate.

        Raises:
            Refused: `imported` is too large, or the tier has queues already. Nothing was written.
            Denied: the tier belongs to another broker.
            Corrupt, NewerVersion: see `JournalReader.load`.
            Unavailable: the journal cannot be read. Retry later.
        """
        options = options or JournalOptions()
        fence = TakeOwnership(0, owner, cluster, broker, 0)
        loaded = await take_ownership(
            store,
            fence,
            clock=clock,
            rng=rng,
            options=options,
            imported=imported,
            permit=permit,
        )
        return cls(store, loaded, clock=clock, rng=rng, options=options)

    def __repr__(self) -> str:
        mood = "over" if self._over else "unsettled" if self._writer.last_error else "in order"
        return (
            f"<Journal {mood}: epoch {self._epoch}, entry {self._state.sequence},"
            f" {self._waiting_now} waiting>"
        )

    def __del__(self) -> None:
        if self._is_open:
            warnings.warn(f"unclosed journal {self!r}", ResourceWarning, stacklevel=2, source=self)

    @property
    def state(self) -> TierState:
        """Published state: the effect of all entries that are known to be durable."""
        return self._state

    @property
    def planned(self) -> TierState:
        """Published state with all accepted transactions. Only the journal may change it."""
        return self._planned

    @property
    def epoch(self) -> int:
        """Epoch of this owner. It never changes."""
        return self._epoch

    @property
    def is_over(self) -> bool:
        """Whether the journal was closed, fenced or found damaged. It publishes nothing then."""
        return self._over is not None

    @property
    def is_closed(self) -> bool:
        """Whether its owner has closed it in order. That owner still owns the tier."""
        return isinstance(self._over, Closed)

    @property
    def is_fenced(self) -> bool:
        """Whether a newer owner has ended the journal."""
        return isinstance(self._over, Fenced)

    @property
    def trouble(self) -> StoreError | None:
        """Error of every recent attempt at the entry under way; None while entries land."""
        return self._writer.trouble

    def subscribe(self, listener: Listener) -> None:
        """Register a callback for each entry. It is called at once, with the published changes."""
        self._listeners.append(listener)

    @property
    def _waiting_now(self) -> int:
        return len(self._waiting) + (len(self._entry.transactions) if self._entry else 0)

    def statistics(self) -> JournalStatistics:
        """Return the counters since the ownership was taken."""
        return JournalStatistics(
            epoch=self._epoch,
            sequence=self._state.sequence,
            entries=self._entries,
            transactions=self._transactions,
            bytes=self._bytes,
            waiting=self._waiting_now,
            unsettled=self._writer.last_error is not None,
            retries=self._writer.retries,
            stood_back=self._claims.count,
            last_error=str(self._over or self._writer.last_error or ""),
        )

    async def publish(self, operations: Iterable[Operation]) -> int:
        """Make a transaction durable and visible, or nothing of it. Return its entry's number.

        The operations apply to the state after all transactions accepted before, durable or not.
        Transactions that are ready while an entry is written share the next entry. Two requests per
        entry.

        Raises:
            Refused: it contradicts the state. None of it becomes visible, and no other transaction
                is affected.
            Fenced: a newer owner has the tier. Transactions in flight may have landed before the
                fence; the new owner's state shows it.
            Closed: the journal was closed. As for `Fenced`.

        Cancelling does not undo it: the transaction may still land.
        """
        transaction = Transaction(*self._accept(tuple(operations)))
        self._waiting.append(transaction)
        self._idle.clear()
        self._wake.set()
        return await transaction.wait()

    def in_flight(self) -> list[Transaction]:
        """Transactions that were accepted and are not published yet, in order."""
        return [*(self._entry.transactions if self._entry else ()), *self._waiting]

    async def settle(self, queue: QueueId) -> None:
        """Wait until no accepted transaction of `queue` is pending.

        After cancelling `publish`, a caller must not rely on `state` before this returns.

        Raises:
            Fenced, Closed: as `publish`.
        """
        while self._planned.queues.get(queue) is not self._state.queues.get(queue):
            theirs = [one for one in self.in_flight() if queue in one.change.queues.changed]
            if self._over is not None or not theirs:
                raise copy_of(self._over or Closed("the journal was closed", JOURNAL_PREFIX))
            await theirs[-1].wait()

    def _accept(self, operations: tuple[Operation, ...]) -> tuple[StateChange, bytes]:
        """Validate a transaction and add it to the planned state. A refused one changes nothing."""
        if self._over is not None:
            raise copy_of(self._over)
        if self._closing.is_set():
            raise Closed("the journal is being closed", JOURNAL_PREFIX)
        if not operations or any(isinstance(one, TakeOwnership) for one in operations):
            raise Refused("empty, or a fence: not a transaction to publish", JOURNAL_PREFIX)
        change = self._planned.plan(operations)
        payload = encode_operations(operations)
        if len(payload) > self.options.transaction_bytes_max:
            limit = self.options.transaction_bytes_max
            raise Refused(f"{len(payload)} bytes, the limit is {limit}", JOURNAL_PREFIX)
        self._planned.install(change)
        return change, payload

    async def verify_owner(self) -> None:
        """Verify that no newer owner has written to the journal. One or two requests.

        Raises:
            Fenced: a newer owner has the tier. The journal is over.
            Unavailable: the journal could not be read.
        """
        if self._over is not None:
            raise copy_of(self._over)
        while True:
            after = str(EntryName(self._state.sequence))
            listed = await self._reader.listed(JOURNAL_PREFIX, after=after)
            names = [name for one in listed if isinstance(name := parse_name(one.name), EntryName)]
            if not names:
                return
            try:
                raw = await self._store.read(str(names[-1]))
            except NotFound:
                continue  # it was cut since: a newer one is there, of this or of a newer owner
            break
        if self._epoch_of(raw, names[-1]) > self._epoch:
            self._end(Fenced("a newer owner has the tier", str(names[-1])))
            raise Fenced("a newer owner has the tier", str(names[-1]))

    def _epoch_of(self, raw: Buffer, name: EntryName) -> int:
        try:
            return Frame.decode(raw, FrameKind.ENTRY, path=str(name)).epoch
        except NewerVersion:  # a newer program took over the tier
            return self._epoch + 1

    def _epoch_in_our_place(self, raw: Buffer, name: EntryName) -> int:
        """As `_epoch_of`. Distinguishes an empty or truncated object from a lost entry."""
        try:
            return self._epoch_of(raw, name)
        except Corrupt as damage:
            reason = f"no entry ({damage.reason}), and nothing was acknowledged under it"
            raise Corrupt(reason, str(name), damage.position) from damage

    async def run(self) -> None:
        """Write entries until cancelled or closed.

        Only one call may run at a time. After a cancellation it may be called again: it first
        settles the entry that was in flight.

        Raises:
            Fenced: a newer owner has the tier.
            Corrupt: under our number lies an entry that no owner can have written.
            Closed: the store was closed during the call.
        """
        assert not self._running, "one worker writes the journal"
        self._running = True
        try:
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write_entries())
                await self._ended.wait()
                writing.cancel()
        finally:
            self._running = False
        if self._over is not None and not self._closing.is_set():
            raise copy_of(self._over)

    async def _write_entries(self) -> None:
        while self._over is None:
            if self._entry is None and not self._waiting:
                self._idle.set()
                self._wake.clear()
                await self._wake.wait()
                continue
            if self._entry is None and self._claims.is_due:
                await self._claims.wait(self._closing)
                continue
            if self._entry is None:
                self._entry = gather_entry(
                    self._waiting,
                    sequence=self._state.sequence + 1,
                    epoch=self._epoch,
                    before=self._last,
                    rng=self._rng,
                    options=self.options,
                )
            try:
                await self._land(self._entry)
            except StoreError as error:
                self._end(error)

    async def _land(self, entry: PendingEntry) -> None:
        """Write one entry, publish it and settle its transactions."""
        written = await self._writer.write(entry.name, entry.raw)
        if written.outcome == Outcome.STALE:
            raise Fenced("newer owners continued the journal and cut it", str(entry.name))
        if written.outcome == Outcome.TAKEN:
            epoch = self._epoch_in_our_place(written.found, entry.name)
            if epoch > self._epoch:
                raise Fenced(f"epoch {epoch} owns the tier, ours is {self._epoch}", str(entry.name))
            raise Corrupt(
                f"an entry of epoch {epoch} lies after epoch {self._epoch}", str(entry.name)
            )
        self._claims.note(written.claims)
        for transaction in entry.transactions:
            self._state.install(transaction.change)
        self._state.sequence = entry.name.sequence
        self._last = entry.raw[: entry.own_bytes]
        self._entry = None
        self._entries += 1
        self._transactions += len(entry.transactions)
        self._bytes += len(entry.raw)
        for transaction in entry.transactions:
            transaction.land(entry.name.sequence)
        for listener in self._listeners:
            listener([transaction.change for transaction in entry.transactions])

    def _end(self, error: StoreError) -> None:
        """Stop publishing, and fail every waiting transaction with `error`."""
        if self._over is None:
            self._over = error
            self._is_open = False
        waiting = [*(self._entry.transactions if self._entry else ()), *self._waiting]
        self._waiting.clear()
        self._entry = None
        for transaction in waiting:
            transaction.fail(self._over)
        self._idle.set()
        self._ended.set()

    async def close(self) -> None:
        """Refuse new transactions, wait for those in flight, and end `run`. Idempotent.

        Waits at most `close_s_max` seconds. A transaction that is not settled by then fails with
        `Closed`, its outcome unknown. Does not close the store. Cancelling leaves the journal
        closing.
        """
        self._closing.set()
        if self._running and not self._idle.is_set():
            await wait_at_most(self._clock, self.options.close_s_max, self._idle.wait())
        if self._over is None:
            self._end(Closed("the journal was closed", JOURNAL_PREFIX))

    def check(self) -> None:
        """Assert J1 to J4. For tests, after any transition. O(records)."""
        accepted = [*(self._entry.transactions if self._entry else ()), *self._waiting]
        if self._over is None:
            planned = self._state.copy()
            for transaction in accepted:
                planned.install(transaction.change)
            planned.sequence = self._planned.sequence
            assert planned == self._planned, f"J1: {self!r}"
        if self._entry is not None:
            assert self._entry.name.sequence == self._state.sequence + 1, f"J2: {self!r}"
        if accepted:
            assert not self._idle.is_set(), f"J3: {self!r}"
            assert self._over is None, f"J3: {self!r}"
        assert self._state.broker.epoch == self._epoch, f"J4: {self!r}"
        assert self._state.sequence == self.fence + self._entries, f"J4: {self!r}"
