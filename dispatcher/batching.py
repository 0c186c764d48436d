"""When a queue's waiting messages make a batch, and how many of them one commit takes. Pure."""

import numpy as np
from numpy.typing import NDArray

from container.record.unit import UNIT_BYTES, Units

Bytes = NDArray[np.int64]
"""What each message will take in the tier, in bytes."""


def written_bytes(references: Units) -> Bytes:
    """Bytes that each referenced message takes in the tier: its record and its unit.

    A unit's size is not trusted yet: `HotLog.records_of_round` compares it with the record later.
    So a size that is not positive counts as 1 byte.
    """
    return np.maximum(references["size"].astype(np.int64), 1) + UNIT_BYTES


def due_at_s(
    *,
    messages: int,
    bytes_known: int,
    since_s: float,
    messages_max: int,
    bytes_max: int,
    age_s_max: float,
) -> float:
    """When waiting messages are due: at once (`since_s`) on count or bytes, else on age.

    `bytes_known` may cover only the first of the `messages`; a queue is then due by its count.
    """
    if messages >= messages_max or bytes_known >= bytes_max:
        return since_s
    return since_s + age_s_max


def messages_within(sizes: Bytes, *, messages_max: int, bytes_max: int) -> int:
    """How many of the first messages fit both limits; at least one, however large it is."""
    assert len(sizes) > 0, "a batch of nothing is cut"
    fitting = int(np.searchsorted(np.cumsum(sizes[:messages_max]), bytes_max, side="right"))
    return max(1, fitting)
