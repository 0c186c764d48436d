"""The tests of the store with a tier below, each on a real S3 server too."""

import inspect
from pathlib import Path
from uuid import uuid4

import pytest

from provider.clock import SystemClock
from provider.object.store import open_object_store
from tests.support.seaweedfs import SeaweedFs
from tests.support.tiered_world import TieredWorld
from tests.test_tieredstore.store import test_deleted_topics, test_moments, test_tiered

OF_FILES = {
    "test_its_bytes_go_from_the_tier_and_its_records_wait_for_no_tier": "files of a topic",
    "test_nothing_comes_back_of_a_batch_that_was_read_before": "appends",
    "test_bytes_go_that_were_written_and_never_published": "appends",
}
"""What asks for files that bear a topic's name and grow; objects hold parts of many topics."""


def of_a_world(module: object) -> dict[str, object]:
    """The tests of a module that run over whatever `world` they get."""
    return {
        name: test
        for name, test in vars(module).items()
        if name.startswith("test_") and "world" in inspect.signature(test).parameters
    }


TESTS = {
    name: test
    for module in (test_tiered, test_moments, test_deleted_topics)
    for name, test in of_a_world(module).items()
}
assert TESTS.keys() > OF_FILES.keys()
globals().update({name: test for name, test in TESTS.items() if name not in OF_FILES})


@pytest.fixture
def world(seaweed: SeaweedFs, tmp_path: Path) -> TieredWorld:
    url = f"s3://{seaweed.make_bucket('stores')}/{uuid4().hex}"

    return TieredWorld(
        tmp_path / "store",
        SystemClock(),
        objects=lambda: open_object_store(url, storage=seaweed.storage),
    )
