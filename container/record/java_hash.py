"""Java's `String.hashCode`, which RocketMQ stores for tags and keys."""

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000


def java_hash(text: str) -> int:
    """Hash of a text as `java.lang.String.hashCode` gives it: a signed 32-bit number.

    Java hashes UTF-16 code units, so a character beyond U+FFFF counts as two. O(length).
    """
    return (continued_hash(0, text) ^ _SIGN) - _SIGN


def continued_hash(before: int, text: str) -> int:
    """The low 32 bits of the hash of two texts in a row, of the first of which `before` is that.

    So the hash of a prefix is made once for many texts. O(length of `text`), some 40 ns a
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
    """Tags code of a ConsumeQueue unit: the hash of the whole TAGS value; 0 for no tag.

    Neither split nor trimmed; the signed 32-bit hash is sign-extended to 64 bits on disk.
    """
    return java_hash(tags)


def key_hash(text: str) -> int:
    """Hash of an index key, `topic#key`, as stored in index items: never negative.

    The absolute value of the hash, except that the smallest number, which has none, becomes 0.
    """
    return unsigned(continued_hash(0, text))


def unsigned(low_bits: int) -> int:
    """The hash in an index item for the low 32 bits of a Java hash."""
    value = abs((low_bits ^ _SIGN) - _SIGN)
    return 0 if value == _SIGN else value
