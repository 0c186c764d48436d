"""What reads an object store for a worker is shared by a process, and ends when nobody uses it."""

import gc
import threading

import fsspec
import pytest

from tieredstore.offline.scan.sources import STORES_MAX, source_of
from tieredstore.offline.scan.split import TierPlace

PLACES = 3 * STORES_MAX


@pytest.mark.slow
def test_stores_that_left_the_cache_end_with_their_last_user() -> None:
    fsspec.filesystem("memory").store.clear()
    first = source_of(TierPlace("memory://bucket/first"))
    before = threading.active_count()
    for number in range(PLACES):
        look_at(f"memory://bucket/many-{number}")
    gc.collect()
    assert threading.active_count() <= before + STORES_MAX
    assert first.read_into("nothing", 0, memoryview(bytearray(1))) == 0, "it is still used"
    first.close()


def look_at(location: str) -> None:
    source = source_of(TierPlace(location))
    assert source.read_into("nothing", 0, memoryview(bytearray(1))) == 0
    source.close()
