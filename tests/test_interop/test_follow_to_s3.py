"""A real broker is followed to a real S3 server, and the tier says what its client reads."""

from pathlib import Path

import pytest

from tests.support.patience import HANGS_AFTER_S
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker
from tests.support.tieredstore_process import Tieredstore, stop
from tests.test_interop.client_view import read_all
from tests.test_interop.test_follow_real_broker import (
    MESSAGES_A_RUN,
    SMALL_SEGMENTS,
    TOPICS,
    assert_tier_equals_client,
    ends_of,
    produce,
)

pytestmark = [pytest.mark.rocketmq, pytest.mark.timeout(HANGS_AFTER_S)]


@pytest.mark.nightly
def test_a_broker_followed_to_s3_reads_as_its_client_reads_it(
    rocketmq: BrokerInstall, s3_url: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    often = {"tieredStoreGroupCommitTimeout": "500"}
    with RunningBroker(rocketmq, tmp_path, store, SMALL_SEGMENTS | often) as broker:
        ours = Tieredstore(broker.conf_path, s3_url)
        with ours.following(store, tmp_path / "follow.log") as follower:
            produce(broker, 1)
            client = read_all(broker, tmp_path / "client", TOPICS)
            ours.wait_for(ends_of(client), follower)
            assert stop(follower) == 0, (tmp_path / "follow.log").read_text()
    assert_tier_equals_client(ours, client, MESSAGES_A_RUN)
    assert ours.rows("check") == []
