"""Transactions that wait for an entry, and how they are gathered into one (decision 0009)."""

import asyncio
from collections import deque
from dataclasses import dataclass

from container.journal.entry import encode_entry
from container.journal.frame import NONCE_BYTES, Frame, FrameKind
from container.journal.options import JournalOptions, RandomSource
from container.metadata.codec import join_operations
from container.metadata.state import StateChange
from container.names.tier_objects import EntryName
from provider.errors import StoreError


class Transaction:
    """A validated transaction, and the callers that wait for it.

    It is settled exactly once: with the number of its entry, or with an error.
    """

    __slots__ = ("_sequence", "change", "payload")

    def __init__(self, change: StateChange, payload: bytes) -> None:
        self.change = change
        self.payload = payload
        self._sequence: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def land(self, sequence: int) -> None:
        """It is durable in entry `sequence`. One that failed before that was known stays so."""
        if not self._sequence.done():  # the journal may end while its last entry is written
            self._sequence.set_result(sequence)

    def fail(self, error: StoreError) -> None:
        """It will not be acknowledged."""
        self._sequence.set_exception(error)
        self._sequence.exception()  # retrieved: its callers may all have been cancelled

    async def wait(self) -> int:
        """The number of its entry, once it is durable. Cancelling this changes nothing."""
        await asyncio.wait([self._sequence])
        error = self._sequence.exception()
        if isinstance(error, StoreError):
            raise copy_of(error)
        return self._sequence.result()


def copy_of(error: StoreError) -> StoreError:
    """A new exception of the same verdict, so that waiters do not share a traceback."""
    copy = type(error)(error.reason, error.path, error.position)
    copy.__cause__ = error
    return copy


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """An entry whose bytes are final, and which is not acknowledged yet."""

    name: EntryName
    raw: bytes
    own_bytes: int
    """Those of `raw` that are no copy of the entry before it."""
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

    `before`: the entry before it, of which it holds a copy.
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
