"""The properties of a message: names and values in one run of bytes."""

from collections.abc import Mapping

NAME_END = "\x01"
PAIR_END = "\x02"

KEYS = "KEYS"
TAGS = "TAGS"
UNIQ_KEY = "UNIQ_KEY"
RECORD_CRC = "__CRC32#"
KEY_SEPARATOR = " "

PROPERTIES_BYTES_MAX = 32767
"""The length field is a signed short."""


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Write `name 0x01 value 0x02` for every pair, in order; pairs with an empty part are left out.

    Unpaired surrogates become `?`, as in Java.

    Raises:
        ValueError: a name holds a separator, or a value the pair separator: it would not be
            read back.
    """
    pieces: list[str] = []
    for name, value in properties.items():
        if NAME_END in name or PAIR_END in name or PAIR_END in value:
            raise ValueError(f"property {name!r} holds a separator")
        if name and value:
            pieces.append(f"{name}{NAME_END}{value}{PAIR_END}")
    return "".join(pieces).encode("utf-8", "replace")


def decode_properties(raw: bytes) -> dict[str, str]:
    """Read the pairs; of two with one name the last counts. Never fails.

    By the rules of RocketMQ's MessageDecoder: pieces end at 0x02 or at the end of the bytes; one
    without 0x01, or with nothing before or after the first 0x01, is dropped; bytes that are not
    UTF-8 are replaced.
    """
    found: dict[str, str] = {}
    for piece in raw.decode("utf-8", "replace").split(PAIR_END):
        name, _, value = piece.partition(NAME_END)
        if name and value:
            found[name] = value
    return found


def split_keys(keys: str) -> list[str]:
    """The user keys in a KEYS value, in order, without the empty pieces of doubled blanks."""
    if KEY_SEPARATOR not in keys:  # as nearly always
        return [keys] if keys else []
    return list(filter(None, keys.split(KEY_SEPARATOR)))


def index_keys(properties: Mapping[str, str]) -> tuple[str, ...]:
    """What the index holds for a message: UNIQ_KEY, then the user keys, each once, in order."""
    unique = properties.get(UNIQ_KEY, "")
    keys = split_keys(properties.get(KEYS, ""))
    return tuple(dict.fromkeys([unique, *keys] if unique else keys))
