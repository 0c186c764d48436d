"""Units and records in one round of requests, where it is known where the records lie.

The units say where records lie, so that a read asks for them first. A read that ends where an
extent does, and begins with one or behind a run that is cached, needs not wait for them. What the
units then say is compared all the same.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.errors import BytesMissing
from container.record.unit import Units
from fetcher.options import FetcherOptions
from fetcher.single_flight import Flight, ReadBudget
from fetcher.source import TierQueue
from provider.errors import Corrupt, NotFound, OutOfRange
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset


class WholeRead(NamedTuple):
    """The units of a flight, and the bytes of the log that should have its records."""

    units: Units
    span: ByteRange
    pieces: list[Buffer]

    def has(self, positions: NDArray[np.int64], sizes: NDArray[np.int64]) -> bool:
        """Whether the records, which ascend, lie in it."""
        if not len(positions):
            return False
        end = int(positions[-1] + sizes[-1])
        return int(positions[0]) >= self.span.start and end <= self.span.end


async def read_whole(
    queue: TierQueue,
    flight: Flight,
    *,
    messages_max: int,
    options: FetcherOptions,
    budget: ReadBudget,
) -> WholeRead | None:
    """All that a flight wants, in one round of requests.

    None where that is not known to be possible, or too much for one run, or where something is
    missing or damaged: reading units first finds out which message that is.

    Raises:
        NotFound, Unavailable, Denied: of the storage.
    """
    end = queue.log_position(QueueOffset(flight.end))
    if flight.log_start is None or end is None or flight.end - flight.start > messages_max:
        return None
    if not 0 < end - flight.log_start <= options.kept_bytes_max:
        return None
    span = ByteRange(flight.log_start, end)
    granted = await budget.acquire(flight, span.length)
    try:
        units, pieces = await queue.units_and_pieces(
            QueueOffset(flight.start), QueueOffset(flight.end), span
        )
    except (OutOfRange, Corrupt) as error:
        if isinstance(error, NotFound) and not isinstance(error, BytesMissing):
            raise
        return None
    finally:
        budget.release(granted)
    return WholeRead(units, span, pieces) if sum(map(len, pieces)) == span.length else None
