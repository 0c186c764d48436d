"""One journal entry: its frame, and behind it a copy of the frame of the entry before it.

So one damaged or missing entry costs nothing as long as the next one is whole, and the newest costs
at most what only it says (decision 0015). A copy proves itself: it has its own checksum and number.
"""

from container.errors import NewerVersion, Refused
from container.journal.frame import Frame, FrameKind
from container.metadata.codec import decode_operations
from container.metadata.operations import TakeOwnership
from container.metadata.state import TierState
from container.names.tier_objects import EntryName
from provider.errors import Corrupt
from provider.object_store import Buffer


def encode_entry(frame: Frame, before: bytes) -> tuple[bytes, int]:
    """An entry's bytes, and how many of them are its own; `before`: those of the entry before it.

    `before` is empty where the writer has no entry before it: it is the first, or a snapshot
    holds all of them.
    """
    version = Frame.VERSION_WITH_COPY if before else Frame.VERSION
    own = frame.encode(version)
    return own + before, len(own)


def apply_entry(state: TierState, raw: Buffer, name: EntryName) -> bytes:
    """Apply the next entry to `state`, all of it or nothing; returns the entry's own bytes.

    Raises:
        Corrupt: the entry is damaged, or contradicts the state that it follows.
        NewerVersion: a newer program wrote it.
    """
    path = str(name)
    assert name.sequence == state.sequence + 1, f"{path} does not follow {state!r}"
    frame, own = decode_entry(raw, name)
    operations = decode_operations(frame.payload, path=path)
    fenced = bool(operations) and isinstance(operations[0], TakeOwnership)
    if frame.epoch != state.broker.epoch + fenced:
        raise Corrupt(f"epoch {frame.epoch} behind epoch {state.broker.epoch}", path)
    try:
        state.apply(operations)
    except Refused as refused:
        raise Corrupt(f"the entry contradicts what is before it: {refused}", path) from refused
    state.sequence = name.sequence
    return own


def decode_entry(raw: Buffer, name: EntryName) -> tuple[Frame, bytes]:
    """An entry's frame, and its own bytes without the copy behind them.

    Raises:
        Corrupt: it is damaged, or has another number.
        NewerVersion: a newer program wrote it.
    """
    frame, length = Frame.decode_first(raw, FrameKind.ENTRY, path=str(name))
    if frame.sequence != name.sequence:
        raise Corrupt(f"the entry says that its number is {frame.sequence}", str(name))
    return frame, bytes(raw[:length])


def follows(raw: Buffer, name: EntryName, last: bytes) -> bool:
    """Whether the entry `name` was written after `last`, the own bytes of the one applied before.

    It was not where its whole copy of the entry before it differs: the tier was put back from a
    copy, and numbers and epochs came again. True where it has no whole copy, or `last` is empty.
    """
    if not last or raw[-len(last) :] == last:
        return True
    try:
        copy = copy_in(raw, name)
    except (Corrupt, NewerVersion):
        return True  # judged where the entry is applied
    return copy is None or copy == last


def copy_in(raw: Buffer, name: EntryName) -> bytes | None:
    """The copy of the entry before it that the entry `name` holds; None if it holds none.

    Raises:
        Corrupt: the entry or the copy is damaged; position is where it begins.
        NewerVersion: a newer program wrote it.
    """
    _, own = decode_entry(raw, name)
    copy = bytes(raw[len(own) :])
    if not copy:
        if Frame.version_of(raw) == Frame.VERSION_WITH_COPY:
            raise Corrupt("its copy of the entry before it is missing", str(name), len(own))
        return None
    try:
        decode_entry(copy, EntryName(name.sequence - 1))
    except (Corrupt, NewerVersion) as error:
        reason = f"its copy of the entry before it: {error.reason}"
        raise Corrupt(reason, str(name), len(own)) from error
    return copy
