"""Compressed message bodies: zlib, LZ4 frames, Zstandard, by the bits of the sysFlag."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# lz4 ships no types: each call casts its result.
import zlib
from enum import IntEnum
from typing import cast

import lz4.frame
import zstandard

from container.record.header import COMPRESSED, COMPRESSION_TYPE_MASK
from provider.errors import Corrupt
from provider.object_store import Buffer

BODY_BYTES_MAX = 64 << 20
"""Default limit of a decompressed body. Brokers accept at most 4 MiB compressed by default."""

FRAMES_MAX = 1024
"""Limit of frames in one body. Each frame costs at least one call."""

_ZSTD_BLOCK_BYTES = 128 << 10  # most that one Zstandard block can expand to
_ZSTD_BLOCK_STORED = 4  # fewest bytes of one Zstandard block
_FEED_BYTES_MIN = 64
_ZLIB_DEFLATE = 8  # RFC 1950: the method in the low bits of the first byte
_FRAME_MAGICS = {1: bytes.fromhex("04224d18"), 2: bytes.fromhex("28b52ffd")}  # LZ4, Zstandard
_SKIPPABLE = 5, bytes.fromhex("2a4d18")  # RFC 8878: 50 to 5f, 2a, 4d, 18 begin a skippable frame
_OUTPUT_BYTES = 1 << 20


class CompressionType(IntEnum):
    """Compression of a body. The numbers are RocketMQ's, shifted left by 8 in the sysFlag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


class NotDecompressed(Corrupt):
    """Undecompressable body: damaged, or encoded wrongly by its producer. Skip the message."""


class _Unbounded(Exception):
    pass


class _Truncated(Exception):
    pass


def compress(body: Buffer, kind: CompressionType) -> tuple[bytes, int]:
    """Return the compressed body and its sysFlag bits. O(length)."""
    flags = COMPRESSED | (kind << 8)
    if kind is CompressionType.LZ4:
        return cast("bytes", lz4.frame.compress(bytes(body))), flags
    if kind is CompressionType.ZSTD:
        return zstandard.ZstdCompressor(level=3).compress(bytes(body)), flags
    return zlib.compress(body, 5), flags


def decompress(
    body: Buffer, sys_flag: int, *, path: str, position: int, bytes_max: int = BODY_BYTES_MAX
) -> bytes:
    """Return the body as the producer sent it. O(length); holds at most about twice `bytes_max`.

    Like Java's streams: bytes after a complete zlib stream are ignored, and further LZ4 and
    Zstandard frames are read.

    Raises:
        NotDecompressed: the body is damaged, truncated, of an unknown kind, or decompresses to more
            than `bytes_max` bytes.
    """
    if not sys_flag & COMPRESSED:
        return bytes(body)
    kind = (sys_flag & COMPRESSION_TYPE_MASK) >> 8
    try:
        if kind in (0, CompressionType.ZLIB):
            return _inflate(bytes(body), bytes_max)
        if kind == CompressionType.LZ4:
            return _read_lz4(bytes(body), bytes_max)
        if kind == CompressionType.ZSTD:
            return _read_zstd(bytes(body), bytes_max)
    except _Unbounded as error:
        raise NotDecompressed(
            f"body is longer than {bytes_max} bytes or in too many frames", path, position
        ) from error
    except _Truncated as error:
        raise NotDecompressed("compressed body is cut short", path, position) from error
    except (zlib.error, zstandard.ZstdError, RuntimeError, MemoryError) as error:
        raise NotDecompressed(f"compressed body is damaged: {error}", path, position) from error
    raise NotDecompressed(f"unknown compression type {kind}", path, position)


def check_compression(body: Buffer, sys_flag: int, *, path: str, position: int) -> None:
    """Compare the first bytes of a body with the format that its sysFlag names. O(1).

    Finds bodies that a producer flagged but did not compress, without decompressing any.

    Raises:
        NotDecompressed: the bytes are of another format, or the sysFlag names an unknown one.
    """
    if not sys_flag & COMPRESSED:
        return
    head = bytes(memoryview(body)[:4])
    kind = (sys_flag & COMPRESSION_TYPE_MASK) >> 8
    if kind in {0, CompressionType.ZLIB}:
        fits = head[0] & 0x0F == _ZLIB_DEFLATE and int.from_bytes(head[:2], "big") % 31 == 0
    elif kind in _FRAME_MAGICS:
        is_skippable = head[:1] and head[0] >> 4 == _SKIPPABLE[0] and head[1:] == _SKIPPABLE[1]
        fits = head == _FRAME_MAGICS[kind] or is_skippable
    else:
        raise NotDecompressed(f"unknown compression type {kind}", path, position)
    if not fits:
        reason = f"compressed body does not begin as {CompressionType(kind or 3).name} does"
        raise NotDecompressed(reason, path, position)


def _inflate(body: bytes, bytes_max: int) -> bytes:
    stream = zlib.decompressobj()
    found = stream.decompress(body, bytes_max + 1)
    if len(found) > bytes_max:
        raise _Unbounded
    if not stream.eof:
        raise _Truncated
    return found


def _read_lz4(body: bytes, bytes_max: int) -> bytes:
    found = bytearray()
    rest = body
    for _ in range(FRAMES_MAX):
        frame = lz4.frame.LZ4FrameDecompressor()
        feed = rest
        while not frame.eof:
            most = min(_OUTPUT_BYTES, bytes_max + 1 - len(found))
            piece = cast("bytes", frame.decompress(feed, most))
            feed = b""
            found += piece
            if len(found) > bytes_max:
                raise _Unbounded
            if not piece and not frame.eof:
                raise _Truncated
        rest = frame.unused_data or b""
        if not rest:
            return bytes(found)
    raise _Unbounded


def _read_zstd(body: bytes, bytes_max: int) -> bytes:
    """Decompress in portions small enough that no output can exceed the remaining limit."""
    found = bytearray()
    rest = memoryview(body)
    for _ in range(FRAMES_MAX):
        frame = zstandard.ZstdDecompressor().decompressobj()
        while not frame.eof:
            if not rest:
                raise _Truncated
            blocks = (bytes_max - len(found)) // _ZSTD_BLOCK_BYTES
            feed = max(_FEED_BYTES_MIN, blocks * _ZSTD_BLOCK_STORED)
            found += frame.decompress(rest[:feed])
            if len(found) > bytes_max:
                raise _Unbounded
            left = len(frame.unused_data) if frame.eof else 0
            rest = rest[min(feed, len(rest)) - left :]
        if not rest:
            return bytes(found)
    raise _Unbounded
