"""CRC-32C of any buffer, computed where its bytes lie."""

from collections.abc import Callable
from typing import Any, cast

import google_crc32c
import numpy as np

from provider.object_store import Buffer

_extend = cast("Callable[[int, Any], int]", vars(google_crc32c)["extend"])
"""The library says nothing of its types."""


def crc32c(data: Buffer, before: int = 0) -> int:
    """CRC-32C of `data`, continued from `before`, the checksum of what lies before it.

    Copies nothing. The library takes `bytes` and arrays only, so that any other buffer passes as
    an array over the same memory, for 0.4 us.
    """
    return _extend(before, data if isinstance(data, bytes) else np.frombuffer(data, np.uint8))
