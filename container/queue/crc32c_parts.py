"""CRC-32C of the second part of a run whose whole and whose first part have known checksums.

A commit's checksum is computed in one pass over its bytes, continued from the extent that they are
expected to grow. Where they are placed elsewhere, the part's own checksum follows from the two
without the bytes: the checksum of `A B` is that of `A`, advanced over as many zeros as `B` has
bytes, xor that of `B`. Advancing is a multiplication of polynomials over GF(2) modulo CRC-32C's,
as in zlib's `crc32_combine`. Bit 31 stands for x^0.
"""

POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31
_X = 1 << 30


def crc32c_of_rest(whole: int, first: int, rest_bytes: int) -> int:
    """CRC-32C of the last `rest_bytes` bytes of a run, without the bytes.

    `whole` is the run's checksum, `first` that of what comes before the rest. About 30 us.
    """
    return whole ^ _product(first, _x_to_the(8 * rest_bytes))


def _product(left: int, right: int) -> int:
    """`left * right` modulo the polynomial."""
    product = 0
    while left:
        if left & _ONE:
            product ^= right
        left = left << 1 & 0xFFFF_FFFF
        right = right >> 1 ^ POLYNOMIAL if right & 1 else right >> 1
    return product


def _x_to_the(exponent: int) -> int:
    """`x ** exponent` modulo the polynomial."""
    power, square = _ONE, _X
    while exponent:
        if exponent & 1:
            power = _product(power, square)
        square = _product(square, square)
        exponent >>= 1
    return power
