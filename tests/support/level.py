"""How much a test that bears the mark `scales` does in each level of tests.

The levels are `make test`, `make test-full` and `make test-nightly`; the variable that chooses the
profile of Hypothesis names them for both. Without it, as in a call of pytest by hand: `quick`.
"""

import os
from typing import TypeVar

LEVEL = os.environ.get("HYPOTHESIS_PROFILE") or "quick"

_Amount = TypeVar("_Amount")


def by_level(*, quick: _Amount, full: _Amount, nightly: _Amount) -> _Amount:
    """The amount of the level that runs."""
    return {"quick": quick, "full": full, "nightly": nightly}[LEVEL]
