"""Message properties, encoded as one byte string of names and values, and Java's string hash."""

from collections.abc import Mapping

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000


def java_hash(text: str) -> int:
    """Hash of a text as in `java.lang.String.hashCode`: a signed 32-bit number.

    Java hashes UTF-16 code units, so a character beyond U+FFFF counts as two. O(length).
    """
    return (continued_hash(0, text) ^ _SIGN) - _SIGN


def continued_hash(before: int, text: str) -> int:
    """Continue a hash: low 32 bits of the hash of a text with hash `before`, followed by `text`.

    The hash of a common prefix is computed once for many texts. O(length of `text`), some 40 ns a
    character.
    """
    if text.isascii():
        units = text.encode()
    else:
        units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("B").cast("H")
    value = before
    for unit in units:
        value = (31 * value + unit) & _MASK
    return value


def tag_hash(tags: str) -> int:
    """Tags code of a ConsumeQueue unit: the hash of the whole TAGS value. 0 for no tag.

    Neither split nor trimmed. On disk the signed 32-bit hash is sign-extended to 64 bits.
    """
    return java_hash(tags)


def key_hash(text: str) -> int:
    """Hash of an index key, `topic#key`, as stored in index items. Never negative.

    The absolute value of the hash. The smallest int32, which has no absolute value, becomes 0.
    """
    return unsigned(continued_hash(0, text))


def unsigned(low_bits: int) -> int:
    """Index hash for the low 32 bits of a Java hash."""
    value = abs((low_bits ^ _SIGN) - _SIGN)
    return 0 if value == _SIGN else value


NAME_END = "\x01"
PAIR_END = "\x02"

KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
RECORD_CRC = "__CRC32#"
KEY_SEPARATOR = " "

PROPERTIES_BYTES_MAX = 32767
"""Limit of the length field, a signed short."""


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode every pair as `name 0x01 value 0x02`, in order. Pairs with an empty part are left out.

    Unpaired surrogates become `?`, as in Java.

    Raises:
        ValueError: a name holds a separator, or a value the pair separator. It could not be
            decoded.
    """
    pieces: list[str] = []
    for name, value in properties.items():
        if NAME_END in name or PAIR_END in name or PAIR_END in value:
            raise ValueError(f"property {name!r} holds a separator")
        if name and value:
            pieces.append(f"{name}{NAME_END}{value}{PAIR_END}")
    return "".join(pieces).encode("utf-8", "replace")


def decode_properties(raw: bytes) -> dict[str, str]:
    """Decode the pairs. The last of several pairs with one name counts. Never fails.

    Follows RocketMQ's MessageDecoder. Pieces end at 0x02 or at the end of the bytes. A piece is
    dropped if it has no 0x01, or nothing before or after its first 0x01. Bytes that are not UTF-8
    are replaced.
    """
    found: dict[str, str] = {}
    for piece in raw.decode("utf-8", "replace").split(PAIR_END):
        name, _, value = piece.partition(NAME_END)
        if name and value:
            found[name] = value
    return found


def split_keys(keys: str) -> list[str]:
    """Split a KEYS value into the user keys, in order, without empty pieces of doubled blanks."""
    if KEY_SEPARATOR not in keys:  # the usual case
        return [keys] if keys else []
    return list(filter(None, keys.split(KEY_SEPARATOR)))


def index_keys(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Keys of a message in the index: UNIQ_KEY, then the user keys, each once, in order."""
    unique = properties.get(UNIQ_KEY, "")
    keys = split_keys(properties.get(KEYS, ""))
    return tuple(dict.fromkeys([unique, *keys] if unique else keys))
