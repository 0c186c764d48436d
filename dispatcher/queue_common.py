"""What all queues of a dispatcher share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dispatcher.options import DispatchOptions
from dispatcher.references import ReferenceCount, References


@dataclass(frozen=True, slots=True)
class Common:
    """What all queues of a dispatcher share."""

    options: DispatchOptions
    count: ReferenceCount
    nothing: References
    """Those of every queue that waits for nothing; stays empty."""
    notify: Callable[[Any], None]
    """Is told of every change of a `QueueProgress`."""
