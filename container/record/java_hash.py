"""Java's `String.hashCode`, which RocketMQ stores for tags and keys."""

_MASK = 0xFFFF_FFFF
_SIGN = 0x8000_0000


def java_hash(text: str) -> int:
    """Hash of a text as `java.lang.String.hashCode` gives it: a signed 32-bit number.

    Java hashes UTF-16 code units, so a character beyond U+FFFF counts as two. O(length).
    """
    units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("B").cast("H")
    value = 0
    for unit in units:
        value = (31 * value + unit) & _MASK
    return (value ^ _SIGN) - _SIGN


def tag_hash(tags: str) -> int:
    """Tags code of a ConsumeQueue unit: the hash of the whole TAGS value; 0 for no tag.

    Neither split nor trimmed; the signed 32-bit hash is sign-extended to 64 bits on disk.
    """
    return java_hash(tags)


def key_hash(text: str) -> int:
    """Hash of an index key, `topic#key`, as stored in index items: never negative.

    The absolute value of the hash, except that the smallest number, which has none, becomes 0.
    """
    value = abs(java_hash(text))
    return 0 if value == _SIGN else value
