"""Transactions that wait for an entry, and how they are gathered into one."""

import asyncio
from collections import deque
from dataclasses import dataclass

from container.journal.frame import NONCE_BYTES, Frame, FrameKind
from container.journal.options import Chance, JournalOptions
from container.metadata.codec import join_operations
from container.metadata.state import StateChange
from container.names.tier_objects import EntryName
from provider.errors import StoreError


class Transaction:
    """A validated transaction, and whoever waits for it.

    It is settled once: with the number of its entry, or with an error.
    """

    __slots__ = ("_error", "_sequence", "_settled", "change", "payload")

    def __init__(self, change: StateChange, payload: bytes) -> None:
        self.change = change
        self.payload = payload
        self._settled = asyncio.Event()
        self._sequence = 0
        self._error: StoreError | None = None

    def land(self, sequence: int) -> None:
        """It is durable in entry `sequence`."""
        self._sequence = sequence
        self._settled.set()

    def fail(self, error: StoreError) -> None:
        """It will not be acknowledged."""
        self._error = error
        self._settled.set()

    async def wait(self) -> int:
        """The number of its entry, once it is durable. Cancelling it changes nothing."""
        await self._settled.wait()
        if self._error is not None:
            raise copy_of(self._error)
        return self._sequence


def copy_of(error: StoreError) -> StoreError:
    """A fresh exception of the same verdict, so that waiters do not share a traceback."""
    copy = type(error)(error.reason, error.path, error.position)
    copy.__cause__ = error
    return copy


@dataclass(frozen=True, slots=True)
class PendingEntry:
    """An entry whose bytes are final, and which has not been acknowledged yet."""

    name: EntryName
    raw: bytes
    transactions: tuple[Transaction, ...]


def gather_entry(
    waiting: deque[Transaction], *, sequence: int, epoch: int, rng: Chance, options: JournalOptions
) -> PendingEntry:
    """Take as many waiting transactions as the limits allow, at least one, in order."""
    taken = [waiting.popleft()]
    total = len(taken[0].payload)
    while waiting and len(taken) < options.entry_transactions_max:
        total += len(waiting[0].payload) + 1
        if total > options.entry_bytes_max:
            break
        taken.append(waiting.popleft())
    payload = join_operations([one.payload for one in taken])
    frame = Frame(FrameKind.ENTRY, epoch, sequence, rng.randbytes(NONCE_BYTES), payload)
    return PendingEntry(EntryName(sequence), frame.encode(), tuple(taken))
