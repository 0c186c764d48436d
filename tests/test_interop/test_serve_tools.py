"""What mqadmin shows of a tier, and of a real broker over the same messages."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support.golden import ROCKETMQ_533, unpacked
from tests.support.patience import HANGS_AFTER_S
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker
from tests.test_interop.test_serve import by_command, places, serving

pytestmark = [pytest.mark.rocketmq, pytest.mark.nightly, pytest.mark.timeout(HANGS_AFTER_S)]

GROUP, TOPIC = "CG_tools", "G_Keys"
SAME = (
    "topicClusterList -t G_Keys",
    "topicStatus -t G_Keys",
    "queryMsgByOffset -t G_Keys -b golden-a -i 0 -o 3",
    "printMsg -t G_Keys",
    "printMsgByQueue -t G_Keys -a golden-a -i 0 -p true",
    "consumeMessage -t G_Keys -b golden-a -i 0 -o 2 -c 2",
    "allocateMQ -t G_Keys -i 10.0.0.1,10.0.0.2",
    "consumerProgress -g CG_tools",
    "getConsumerConfig -g CG_tools",
    "brokerConsumeStats -b {address}",
)
"""Commands that print the same lines."""
SHOWN = {
    "queryMsgByKey -t G_Keys -k k1": r"^FD\w+ +1 +0\b",
    "clusterList": r"GoldenCluster +golden-a +0 +127\.0\.0\.1:\d+ +V5_3_3",
    "clusterList -m": r"GoldenCluster +golden-a",
    "topicList": r"^G_Orders$",
    "topicList -c": r"GoldenCluster +G_Keys +CG_tools",
    "topicRoute -t G_Keys": r'"readQueueNums":2',
    "consumerProgress": r"^#Group",
    "brokerStatus -b {address}": r"brokerVersionDesc +: V5_3_3",
    "getBrokerConfig -b {address}": r"brokerName += +golden-a",
    "statsAll -t G_Keys": r"G_Keys",
    "queryCq -t G_Keys -q 1 -i 7 -c 2 -b {address}": r"idx: 7",
    "exportMetadata -c GoldenCluster -f {directory}": r"export .* success",
    "exportConfigs -c GoldenCluster -f {directory}": r"export .* success",
    "skipAccumulatedMessage -g CG_tools -t G_Keys": r"golden-a +0 +180",
    "resetOffsetByTime -g CG_tools -t G_Keys -s 0": r"golden-a +0 +\d+ +\d+ +0 +0 ",
    "cloneGroupOffset -s CG_tools -d CG_clone -t G_Keys": r"success",
}
"""Commands that print more of a broker, and what they show. The last ones move offsets."""
DASHBOARD = {
    "examineBrokerClusterInfo": "ok golden-a",
    "fetchBrokerRuntimeStats": "ok V5_3_3",
    "getBrokerConfig": "ok golden-a",
    "getNameServerAddressList": "ok 1",
    "fetchAllTopicList": "ok true",
    "getAllTopicConfig": "ok true",
    "examineTopicRouteInfo": "ok 1",
    "examineTopicStats": "ok 2",
    "examineTopicConfig": "ok 2",
    "queryTopicConsumeByWho": "ok true",
    "viewBrokerStatsData TOPIC_PUT_NUMS": "refused 1",  # no statistics are kept
    "viewBrokerStatsData GROUP_GET_NUMS": "refused 1",
    "getAllSubscriptionGroup": "ok true",
    "examineConsumeStats": "ok 3",  # with the topic of the group's retries
    "examineConsumeStats of an address": "ok 3",
    "examineConsumeStats of a topic": "ok 2",
    "examineConsumerConnectionInfo": "ok 1",
    "getConsumerRunningInfo": "ok 2",  # the topic, and that of the group's retries
    "getConsumerRunningInfo with threads": "ok true",
    "getConsumeStatus": "ok true",
    "examineSubscriptionGroupConfig": "ok CG_dashboard",
    "resetOffsetByTimestamp": "ok 2",
    "pull": "ok 0",
    "searchOffset": "ok true",
    "queryMessage": "ok true",
    "viewMessage": "ok 0",
    "messageTrackDetail": "ok CG_dashboard",
    "queryConsumeQueue": "ok 3",
    "queryConsumeTimeSpan": "ok 2",
    "examineProducerConnectionInfo": "refused 1",
    "createAndUpdateTopicConfig": "refused 16",
    "deleteSubscriptionGroup": "refused 16",
}
"""Calls of rocketmq-dashboard and what its pages get, with a consumer of two queues online."""
OF_SOURCE = re.compile(
    r"\d+\.\d+\.\d+\.\d+:\d+"
    r"|(?<=OffsetID: )\s*\w+|(?<=CommitLog Offset: )\s*\d+"
    r"|(?<=msgId=)\w+|(?<=commitLogOffset=)\d+"
    r"|(?<=Consume TPS: )\s*[\d.]+"
)
"""Addresses, places in the files of a broker or a tier, and a rate of the last minute."""
NOT_SHARED = ("RMQ_SYS_", f"MessageTrack [consumerGroup={TOPIC},", "See https://rocketmq.")
"""Lines of a broker alone: its own topics, and its topic as a group of itself (5.3.3), an error."""


def lines(said: str) -> list[str]:
    """Lines in order, without what is of one source alone, and the width of columns."""
    found = (" ".join(OF_SOURCE.sub("...", line).split()) for line in said.splitlines())
    return sorted(line for line in found if line and not line.startswith(NOT_SHARED))


def narrow(topics: Path) -> None:
    """Leave the topic the queues that have messages: a server knows no others."""
    found = json.loads(topics.read_text())
    width = len({queue for queue, _ in places(TOPIC)})
    found["topicConfigTable"][TOPIC].update(readQueueNums=width, writeQueueNums=width)
    topics.write_text(json.dumps(found))


@pytest.fixture(scope="module")
def printed(
    rocketmq: BrokerInstall, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, str], dict[str, str]]:
    """What each command prints of the tier and of the broker."""
    work = tmp_path_factory.mktemp("tools")
    count = len(places(TOPIC))
    with serving(rocketmq, work) as served:
        served.consume(GROUP, TOPIC, "*", count)
        ours = by_command(served.run, work / "ours", served.address, [*SAME, *SHOWN])
    shutil.copytree(unpacked(ROCKETMQ_533).store, work / "store")
    narrow(work / "store" / "config" / "topics.json")
    names = {"brokerClusterName": "GoldenCluster", "brokerName": "golden-a"}
    with RunningBroker(rocketmq, work / "broker", work / "store", names) as broker:
        reading = (GROUP, TOPIC, "*", "concurrently", "1", str(count))
        broker.run("Consume", *reading, consume_first="true")
        theirs = by_command(broker.run, work / "theirs", broker.address, SAME)
    return ours, theirs


@pytest.mark.parametrize("command", SAME)
def test_mqadmin_prints_what_it_prints_of_a_broker(
    printed: tuple[dict[str, str], dict[str, str]], command: str
) -> None:
    ours, theirs = printed
    assert lines(ours[command]) == lines(theirs[command])
    assert "golden" in ours[command].lower()  # the broker or its cluster: it is no error


@pytest.mark.parametrize("command", SHOWN)
def test_mqadmin_shows_what_is_there(
    printed: tuple[dict[str, str], dict[str, str]], command: str
) -> None:
    assert re.search(SHOWN[command], printed[0][command], re.MULTILINE), printed[0][command]


def test_the_calls_of_the_dashboard_are_answered(rocketmq: BrokerInstall, tmp_path: Path) -> None:
    with serving(rocketmq, tmp_path) as served:
        said = served.run("Dashboard", TOPIC, "CG_dashboard")
    found = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    assert found == DASHBOARD
