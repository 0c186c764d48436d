"""Layout of an encrypted object: frames of one length, so that any range is read exactly.

    object     frame 0 | frame 1 | ... | frame n-1 | padding of `tail` zero bytes
    frame      data key id 4 | upload 8 | number 4 | ciphertext 4,064 | tag 16      (4,096 bytes)
    plaintext  flags and length 4, big-endian | content, up to 4,060 bytes | zeros

Every frame except the last is full of content. The last holds `tail` bytes, fewer than a full
frame, perhaps none. The padding is as long as the content of the last frame. The length of the
object, which a listing returns, therefore determines the length of the content. The frames of any
range of the content can be requested exactly, without the length of the object. An object of `n`
content bytes takes 0.9 % more, and up to two frames.

Each frame is sealed by AES-256-GCM under a key of the object: HKDF-SHA256 (RFC 5869) of a data key,
with the tier and the object's name. The nonce is 8 random bytes, the same in all frames of one
upload, and the number of the frame, which is also its associated data. A frame is therefore refused
in another place, object or tier, beside a frame of another upload of that name, and if truncated.

The older form, of data keys that are bound to no tier, has a random nonce for each frame and no
tier in the key of the object. It is read and no longer written.
"""

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from provider.errors import Corrupt, OutOfRange
from provider.object_store import Buffer
from provider.ranges import ByteRange

FRAME_BYTES: Final = 4096
KEY_ID_BYTES: Final = 4
NONCE_BYTES: Final = 12
UPLOAD_BYTES: Final = 8
TAG_BYTES: Final = 16
CONTENT_BYTES: Final = FRAME_BYTES - KEY_ID_BYTES - NONCE_BYTES - TAG_BYTES - 4
"""Bytes of content of a full frame."""

_HEAD = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_LAST = 1 << 31
_COUNTER = struct.Struct(">I")
_COMMON_BYTES = KEY_ID_BYTES + UPLOAD_BYTES
"""Length of the prefix that all frames of one upload share."""
_SEALED_FROM = KEY_ID_BYTES + NONCE_BYTES


class Cipher(Protocol):
    """Part of `cryptography`'s `AESGCM` that frames need."""

    def encrypt(self, nonce: Buffer, data: Buffer, associated_data: Buffer | None) -> bytes:
        """Return ciphertext and tag."""
        ...

    def decrypt(self, nonce: Buffer, data: Buffer, associated_data: Buffer | None) -> bytes:
        """Return the plaintext."""
        ...


class ObjectKey(NamedTuple):
    """Cipher of one object under one data key."""

    cipher: Cipher
    is_bound: bool
    """Whether the data key is bound to the tier: all frames are then of one upload."""


KeyOf = Callable[[bytes], ObjectKey]
"""Lookup of an object's cipher by the id of the data key."""


class MixedUploads(Corrupt):
    """Frames of several uploads. A cache had some of them, or the object was replaced."""


def content_bytes(object_bytes: int) -> int | None:
    """Return the content length of an object of that length; None if no encrypted one has it."""
    frames, tail = divmod(object_bytes, FRAME_BYTES)
    if not frames or tail >= CONTENT_BYTES:
        return None
    return (frames - 1) * CONTENT_BYTES + tail


def frames_of(wanted: ByteRange) -> ByteRange:
    """Return the range of the object whose frames hold a range of the content. Pure."""
    first, last = wanted.start // CONTENT_BYTES, (wanted.end - 1) // CONTENT_BYTES
    return ByteRange(first * FRAME_BYTES, (last + 1) * FRAME_BYTES)


def seal(cipher: Cipher, key_id: bytes, buffers: Sequence[Buffer]) -> list[bytes]:
    """Encrypt the joined buffers as one object. Costs about 2 s a GB, and a copy in memory."""
    size_bytes = sum(map(len, buffers))
    full, tail = divmod(size_bytes, CONTENT_BYTES)
    upload = os.urandom(UPLOAD_BYTES)
    pieces: list[bytes] = []
    for number, (head, content) in enumerate(_contents(buffers, full, tail)):
        nonce = upload + _COUNTER.pack(number)
        plain = _HEAD.pack(head) + content
        pieces += (key_id, nonce, cipher.encrypt(nonce, plain, _NUMBER.pack(number)))
    pieces.append(bytes(tail))
    return pieces


def _contents(buffers: Sequence[Buffer], full: int, tail: int) -> Iterator[tuple[int, Buffer]]:
    """Yield head and padded content of each frame."""
    whole = memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))
    for at in range(0, full * CONTENT_BYTES, CONTENT_BYTES):
        yield CONTENT_BYTES, whole[at : at + CONTENT_BYTES]
    yield _LAST | tail, bytes(whole[full * CONTENT_BYTES :]) + bytes(CONTENT_BYTES - tail)


def key_ids(frames: Buffer) -> set[bytes]:
    """Return the ids of the data keys of these frames, usually one. Pure."""
    whole = memoryview(frames)
    starts = range(0, len(whole) - FRAME_BYTES + 1, FRAME_BYTES)
    return {bytes(whole[at : at + KEY_ID_BYTES]) for at in starts}


def open_range(key_of: KeyOf, frames: Buffer, name: str, wanted: ByteRange) -> bytes:
    """Decrypt a range of the content from the bytes of `frames_of` that range.

    Raises:
        Corrupt: a frame was changed, moved, sealed under another key, or is of another upload.
        OutOfRange: the content ends before the range does.
    """
    first = wanted.start // CONTENT_BYTES
    contents: list[bytes] = []
    for number, (content, is_last) in enumerate(_opened(key_of, frames, name, first), first):
        contents.append(content)
        end = number * CONTENT_BYTES + len(content)
        if is_last and end < wanted.end:
            raise OutOfRange(f"the object ends at {end}", name, wanted.start)
    skipped = wanted.start - first * CONTENT_BYTES
    joined = contents[0] if len(contents) == 1 else b"".join(contents)
    return joined[skipped : skipped + wanted.length]


def open_whole(key_of: KeyOf, found: Buffer, name: str) -> bytes:
    """Decrypt the content of a whole object.

    Raises:
        Corrupt: the object was changed, truncated or moved, or is not encrypted.
    """
    size_bytes = content_bytes(len(found))
    if size_bytes is None:
        raise Corrupt(f"an object of {len(found)} bytes was not written encrypted", name)
    frames = memoryview(found)[: len(found) // FRAME_BYTES * FRAME_BYTES]
    opened = list(_opened(key_of, frames, name, 0))
    whole = b"".join(content for content, _ in opened)
    if not opened[-1][1] or len(whole) != size_bytes:
        raise Corrupt("an encrypted object was cut short", name, len(whole))
    return whole


def _opened(key_of: KeyOf, frames: Buffer, name: str, first: int) -> Iterable[tuple[bytes, bool]]:
    """Yield the content of each frame, and whether it is the last frame of the object."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra has it

    whole = memoryview(frames)
    common = bytes(whole[:_COMMON_BYTES])
    bound: ObjectKey | None = None
    for number in range(first, first + len(whole) // FRAME_BYTES):
        at = (number - first) * FRAME_BYTES
        head = bytes(whole[at : at + _SEALED_FROM])
        key = bound or key_of(head[:KEY_ID_BYTES])
        if key.is_bound:
            bound = key  # the same for all frames: saves the lookup
            if head != common + _COUNTER.pack(number):
                position = number * CONTENT_BYTES
                raise MixedUploads("frames of several uploads, or moved ones", name, position)
        sealed = whole[at + _SEALED_FROM : at + FRAME_BYTES]
        try:
            plain = key.cipher.decrypt(head[KEY_ID_BYTES:], sealed, _NUMBER.pack(number))
        except InvalidTag as error:
            reason = "an encrypted frame was changed, moved, or sealed under another key"
            raise Corrupt(reason, name, number * CONTENT_BYTES) from error
        (encoded,) = _HEAD.unpack_from(plain)
        length, is_last = encoded & ~_LAST, bool(encoded & _LAST)
        yield plain[_HEAD.size : _HEAD.size + length], is_last
        if is_last:
            return
