"""A journal entry: its frame, followed by a copy of the previous entry's frame.

A single damaged or missing entry is recovered from the next entry. Damage of the newest entry loses
at most its own content (decision 0015). A copy is verified by its own checksum and number.
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
    """Encode an entry. Return its bytes, and the number of them before the copy.

    `before` has the own bytes of the previous entry. It is empty if the writer has no previous
    entry: the entry is the first, or a snapshot covers all earlier ones.
    """
    version = Frame.VERSION_WITH_COPY if before else Frame.VERSION
    own = frame.encode(version)
    return own + before, len(own)


def apply_entry(state: TierState, raw: Buffer, name: EntryName) -> bytes:
    """Apply the next entry to `state`, all of it or nothing. Return the entry's own bytes.

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
    """Decode an entry to its frame and its own bytes, without the copy after them.

    Raises:
        Corrupt: it is damaged, or has another number.
        NewerVersion: a newer program wrote it.
    """
    frame, length = Frame.decode_first(raw, FrameKind.ENTRY, path=str(name))
    if frame.sequence != name.sequence:
        raise Corrupt(f"the entry says that its number is {frame.sequence}", str(name))
    return frame, bytes(raw[:length])


def follows(raw: Buffer, name: EntryName, last: bytes) -> bool:
    """Whether the entry `name` was written after `last`, the own bytes of the last applied entry.

    False if its intact copy of the previous entry differs: the tier was restored from a backup, and
    numbers and epochs were reused. True if it has no intact copy, or `last` is empty.
    """
    if not last or raw[-len(last) :] == last:
        return True
    try:
        copy = copy_in(raw, name)
    except (Corrupt, NewerVersion):
        return True  # raised when the entry is applied
    return copy is None or copy == last


def copy_in(raw: Buffer, name: EntryName) -> bytes | None:
    """Return the copy of the previous entry in the entry `name`. None if it holds none.

    Raises:
        Corrupt: the entry or the copy is damaged. The position is that of its first byte.
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
