"""Profiles and the blocking detector, for every test."""

import os
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster
from hypothesis import HealthCheck, settings

settings.register_profile(
    "dev", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci",
    max_examples=100,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("nightly", max_examples=5_000, stateful_step_count=200, deadline=None)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)

OURS = ["tieredstore", "dispatcher", "fetcher", "container", "provider"]


@pytest.fixture(autouse=True)
def nothing_blocks_the_loop() -> Iterator[None]:
    """Any blocking call that our code makes on a loop's thread fails the test."""
    detector = BlockBuster(scanned_modules=OURS)
    for name in ("os.stat", "os.scandir", "os.listdir"):
        detector.functions.pop(name, None)  # opening and closing may look at directories
    detector.activate()
    yield
    detector.deactivate()
