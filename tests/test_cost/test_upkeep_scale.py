"""How work of the upkeep grows with the tier, in function calls: the bench has the seconds.

A call is counted where it begins, of Python and of C alike, so a busy machine changes nothing.
"""

import sys
from collections.abc import Awaitable
from types import FrameType, SimpleNamespace

import pytest

from tests.bench import upkeep_scale
from tests.bench.upkeep_scale import ROWS, Measured, measured

QUEUES = 2_500
ALIKE = 1.1
LINEAR = 2.4
"""For twice the queues; the rest are sorts and heaps."""
OF_ALL = {
    "first retention",
    "first offload",
    "missing keys",
    "sealed keys",
    "merged index files",
    "new topics",
}
"""Rows whose work is that of all queues, or of as many topics. Others do the same in any tier."""
LONG_QUEUE = {"merged manifests", "first trim", "next trim"}
"""Rows of one queue of one length: `test_long_queues.py` counts what they do."""
pytestmark = pytest.mark.slow


@pytest.fixture
def tiers_are_sound() -> None:
    """Check none: the queues of the bench name files that were never written."""


@pytest.fixture(autouse=True)
def calls_for_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the bench measure calls in place of milliseconds."""
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    async def counted(work: Awaitable[object]) -> Measured:
        sys.setprofile(count)
        try:
            return await measured(work)
        finally:
            sys.setprofile(None)

    clock = SimpleNamespace(thread_time=lambda: calls / 1000)
    monkeypatch.setattr(upkeep_scale, "time", clock)
    monkeypatch.setattr(upkeep_scale, "measured", counted)


@pytest.mark.parametrize("name", sorted(ROWS.keys() - LONG_QUEUE))
async def test_twice_the_queues_are_twice_the_work_at_most_and_hold_others_no_longer(
    name: str,
) -> None:
    work, _ = ROWS[name]
    small, large = await work(QUEUES), await work(2 * QUEUES)
    assert 0 < large.total_ms < small.total_ms * (LINEAR if name in OF_ALL else ALIKE)
    if name != "new topics":  # one transaction
        assert large.held_ms < small.held_ms * ALIKE
