"""Snapshots: the whole state after one entry, in one object under a unique name."""

from container.journal.frame import NONCE_BYTES, Frame, FrameKind
from container.journal.options import RandomSource
from container.metadata.codec import decode_state, state_pieces
from container.metadata.state import TierState
from container.names.tier_objects import SnapshotName
from provider.clock import Clock
from provider.errors import Corrupt
from provider.object_store import Buffer, ObjectStore

PIECES_PER_TURN = 64
"""Records encoded before other tasks get a turn: about 1 ms."""


def decode_snapshot(raw: Buffer, name: SnapshotName) -> TierState:
    """Read a snapshot's object.

    Raises:
        Corrupt: it is damaged, or contradicts its name.
        NewerVersion: a newer program wrote it.
    """
    path = str(name)
    frame = Frame.decode(raw, FrameKind.SNAPSHOT, path=path)
    state = decode_state(frame.payload, path=path)
    said = SnapshotName(frame.sequence, frame.epoch, frame.nonce.hex())
    if said != name or state.sequence != name.sequence or state.broker.epoch > name.epoch:
        raise Corrupt(f"the snapshot says that it is {said} of {state!r}", path)
    return state


async def encode_snapshot(
    state: TierState, *, epoch: int, nonce: bytes, clock: Clock
) -> tuple[SnapshotName, bytes]:
    """A snapshot's name and bytes. Yields to other tasks; `state` must be the caller's own copy."""
    pieces: list[bytes] = []
    for number, piece in enumerate(state_pieces(state)):
        pieces.append(piece)
        if number % PIECES_PER_TURN == PIECES_PER_TURN - 1:
            await clock.sleep(0)
    frame = Frame(FrameKind.SNAPSHOT, epoch, state.sequence, nonce, b"".join(pieces))
    return SnapshotName(state.sequence, epoch, nonce.hex()), frame.encode()


async def write_snapshot(
    store: ObjectStore, state: TierState, *, epoch: int, rng: RandomSource, clock: Clock
) -> SnapshotName:
    """Write `state` under a new name, read it back and compare. Two requests.

    Raises:
        Unavailable: unknown outcome; call again, which takes another name.
        Corrupt: the object reads back different from what was written, and must not be used.
    """
    nonce = rng.randbytes(NONCE_BYTES)
    name, raw = await encode_snapshot(state.copy(), epoch=epoch, nonce=nonce, clock=clock)
    await store.create(str(name), [raw])
    if bytes(await store.read(str(name))) != raw:
        raise Corrupt("a snapshot reads back different from what was written", str(name))
    return name
