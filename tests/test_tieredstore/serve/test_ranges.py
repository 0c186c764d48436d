"""Ranges that the plug-in for Java brokers polls."""

import struct
from pathlib import Path
from typing import Any

from container.metadata.records import MADE_AGAIN_REASON, Gap, Queue
from container.names.queue_id import QueueId
from provider.ranges import QueueOffset
from tests.support.cli import run, settings
from tests.support.golden import ROCKETMQ_533, expected, unpacked
from tests.support.remoting_client import RemotingClient
from tests.support.served_tier import Grown, asked, served
from tieredstore.serve.history import readable_range
from tieredstore.serve.wire.frame import Command, RequestCode, ResponseCode

NAMES: dict[str, Any] = {
    "version": 1,
    "cluster": "GoldenCluster",
    "broker": "golden-a",
    "since": "",
}


async def ranges(client: RemotingClient, **more: Any) -> Command:
    return await client.ask(RequestCode.TIER_RANGES, **(NAMES | more))


def rows(body: bytes) -> dict[tuple[str, int], tuple[int, int]]:
    found, at = dict[tuple[str, int], tuple[int, int]](), 0
    while at < len(body):
        end = at + 2 + int.from_bytes(body[at : at + 2], "big")
        queue, first, last = struct.unpack_from(">iqq", body, end)
        found[body[at + 2 : end].decode(), queue] = first, last
        at = end + 20
    return found


async def test_each_queue_is_reported_once(tmp_path: Path) -> None:
    tree = unpacked(ROCKETMQ_533)
    tier = tmp_path / "tier"
    run(*settings(tree, tier), "tier", tree.store)
    ends = dict[tuple[str, int], int]()
    for row in expected(ROCKETMQ_533, "messages"):
        queue = row["topic"], row["queue_id"]
        ends[queue] = max(ends.get(queue, 0), row["queue_offset"] + 1)
    async with asked(tier, tmp_path) as client:
        first = await ranges(client)
        assert rows(first.body) == {queue: (0, end) for queue, end in ends.items()}
        assert (first.fields["all"], first.fields["fresh"]) == ("true", "true")
        again = await ranges(client, since=first.fields["sequence"])
        assert (again.body, again.fields["all"]) == (b"", "false")
        restarted = await ranges(client, since="other-3")
        assert (restarted.body, restarted.fields["all"]) == (first.body, "true")
        life = first.fields["sequence"].partition("-")[0]
        long = await ranges(client, since=f"{life}-{'1' * 5000}")
        assert (long.body, long.fields["all"]) == (first.body, "true")
        for wrong in ({"broker": "other"}, {"cluster": "other"}):
            refused = await ranges(client, **wrong)
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "is that of broker golden-a of cluster GoldenCluster" in (refused.remark or "")
        assert (await ranges(client, version=2)).code == ResponseCode.INVALID_PARAMETER


def test_an_earlier_incarnation_of_a_topic_is_not_in_the_range() -> None:
    gaps = tuple(
        Gap(QueueOffset(start), QueueOffset(end), reason, 0)
        for start, end, reason in ((3, 5, "lost"), (10, 12, MADE_AGAIN_REASON), (14, 15, "lost"))
    )
    queue = Queue(QueueId("T", 0), QueueOffset(1), QueueOffset(20), gaps=gaps)
    assert readable_range(queue) == (12, 20)


async def test_only_what_changed_is_reported(tmp_path: Path) -> None:
    grown = Grown(tmp_path)
    names = {"cluster": "C", "broker": "b"}
    grown.broker.put_many("B", 0, [b"beside"])
    await grown.put(b"first")
    async with (
        served(grown.tier, tmp_path) as server,
        await RemotingClient.connect(server.address) as client,
    ):
        first = await ranges(client, **names)
        assert rows(first.body) == {("A", 0): (0, 1), ("B", 0): (0, 1)}
        await grown.put(b"second")
        await server.history.refresh()
        since = first.fields["sequence"]
        second = await ranges(client, since=since, **names)
        assert rows(second.body) == {("A", 0): (0, 2)}
        again = await ranges(client, since=since, **names)
        assert (again.body, again.fields) == (second.body, second.fields)
