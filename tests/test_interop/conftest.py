"""What the tests against a real RocketMQ broker share."""

import pytest

from tests.support.lacking import lacks
from tests.support.rocketmq_broker import BrokerInstall, JavaMissing


@pytest.fixture(scope="session")
def rocketmq() -> BrokerInstall:
    """RocketMQ's jars. Without Java or Maven the tests are skipped; in CI that is a failure."""
    try:
        return BrokerInstall.fetched()
    except JavaMissing as missing:
        lacks(str(missing))
