"""Some tests of the store with a tier below, on a real S3 server; `test_tiered.py` has all."""

from pathlib import Path
from uuid import uuid4

import pytest

from provider.clock import SystemClock
from provider.object.opening import open_object_store
from tests.support.seaweedfs import SeaweedFs
from tests.support.tiered_world import TieredWorld
from tests.test_tieredstore.store.test_tiered import (
    test_a_walk_sees_each_message_once_while_messages_move_and_expire,
    test_the_level_says_who_serves_and_changes_at_run_time,
)

__all__ = [
    "test_a_walk_sees_each_message_once_while_messages_move_and_expire",
    "test_the_level_says_who_serves_and_changes_at_run_time",
]


@pytest.fixture
def world(seaweed: SeaweedFs, tmp_path: Path) -> TieredWorld:
    url = f"s3://{seaweed.make_bucket('stores')}/{uuid4().hex}"

    return TieredWorld(
        tmp_path / "store",
        SystemClock(),
        objects=lambda: open_object_store(url, storage=seaweed.storage),
    )
