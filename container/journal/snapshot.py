"""Snapshots: the whole state after one entry, in one object under a unique name."""

from collections.abc import AsyncIterator, Sequence

from container.journal.frame import CRC_BYTES, NONCE_BYTES, Frame, FrameKind
from container.metadata.codec import (
    RECORDS_PER_TURN,
    decode_state,
    decoding_state,
    encoding_of,
    state_pieces,
)
from container.metadata.state import TierState
from container.names.tier_objects import SnapshotName
from container.record.checksum import crc32c
from provider.clock import Clock, RandomSource, in_turns
from provider.errors import Corrupt
from provider.object_store import Buffer, ObjectStore

PIECE_BYTES_MAX = 1 << 16
"""Bytes of a record after which other tasks get a turn: a coverage of thousands of queues."""
CHUNKS_PER_TURN = 64
"""Chunks that are summed or compared before other tasks get a turn."""


def decode_snapshot(raw: Buffer, name: SnapshotName) -> TierState:
    """Decode a snapshot's object.

    Raises:
        Corrupt: it is damaged, or contradicts its name.
        NewerVersion: a newer program wrote it.
    """
    frame = Frame.decode(raw, FrameKind.SNAPSHOT, path=str(name))
    return _named(decode_state(frame.payload, path=str(name)), frame, name)


async def decode_in_turns(raw: Buffer, name: SnapshotName, clock: Clock) -> TierState:
    """As `decode_snapshot`. Yields to other tasks: 100,000 queues take seconds."""
    frame = Frame.decode(raw, FrameKind.SNAPSHOT, path=str(name))
    turns = decoding_state(frame.payload, path=str(name))
    return _named(await in_turns(turns, lambda: clock.sleep(0)), frame, name)


def _named(state: TierState, frame: Frame, name: SnapshotName) -> TierState:
    """Return the state of a snapshot's frame, if it matches the name."""
    said = SnapshotName(frame.sequence, frame.epoch, frame.nonce.hex())
    if said != name or state.sequence != name.sequence or state.broker.epoch > name.epoch:
        raise Corrupt(f"the snapshot says that it is {said} of {state!r}", str(name))
    return state


async def encode_snapshot(
    state: TierState, *, epoch: int, nonce: bytes, clock: Clock
) -> tuple[SnapshotName, list[bytes]]:
    """Encode a snapshot to its name and its bytes, as consecutive chunks.

    Yields to other tasks. `state` must be the caller's own copy. The bytes stay in chunks because
    joining those of 100,000 queues would block the event loop for a tenth of a second.
    """
    chunks: list[bytes] = []
    pieces = state_pieces(state)
    some: list[bytes] = []
    for piece in pieces:
        some.append(piece)
        if len(some) == RECORDS_PER_TURN or len(piece) > PIECE_BYTES_MAX:
            chunks.append(b"".join(some))
            some.clear()
            await clock.sleep(0)
    chunks.append(b"".join(some))
    frame = Frame(FrameKind.SNAPSHOT, epoch, state.sequence, nonce, b"")
    encoding = 0
    async for chunk in _in_turns(chunks, clock):
        encoding = max(encoding, encoding_of(chunk))  # a chunk ends where a record does
    head = frame.head(encoding, sum(map(len, chunks)))
    crc = crc32c(head)
    async for chunk in _in_turns(chunks, clock):
        crc = crc32c(chunk, crc)
    name = SnapshotName(state.sequence, epoch, nonce.hex())
    return name, [head + crc.to_bytes(CRC_BYTES, "big"), *chunks]


async def write_snapshot(
    store: ObjectStore, state: TierState, *, epoch: int, rng: RandomSource, clock: Clock
) -> SnapshotName:
    """Write `state` under a new name, read it back and compare. Two requests.

    Raises:
        Unavailable: the outcome is unknown. Call again, which takes another name.
        Corrupt: the object reads back different from what was written. It must not be used.
    """
    nonce = rng.randbytes(NONCE_BYTES)
    name, chunks = await encode_snapshot(state.copy(), epoch=epoch, nonce=nonce, clock=clock)
    await store.create(str(name), chunks)
    found = memoryview(await store.read(str(name)))
    at = 0
    async for chunk in _in_turns(chunks, clock):
        if bytes(found[at : at + len(chunk)]) != chunk:
            break
        at += len(chunk)
    if at != len(found) or at != sum(map(len, chunks)):
        raise Corrupt("a snapshot reads back different from what was written", str(name))
    return name


async def _in_turns(chunks: Sequence[bytes], clock: Clock) -> AsyncIterator[bytes]:
    """Iterate over the chunks, and give other tasks a turn in between."""
    for number, chunk in enumerate(chunks):
        yield chunk
        if number % CHUNKS_PER_TURN == CHUNKS_PER_TURN - 1:
            await clock.sleep(0)
