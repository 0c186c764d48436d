"""Messages of a tier beside the rows that the official client read."""

from ipaddress import ip_address
from typing import Any

from container.java.metadata import parse_java_metadata
from container.java.tier import load_java_tier
from container.names.queue_id import QueueId
from container.record.header import COMPRESSED
from container.tier_view import FixedMetadata, TierReader
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import SystemClock
from provider.posix.store import PosixStore
from tests.support.golden import GoldenSet, GoldenTree
from tieredstore.cli.message_printer import message_row
from tieredstore.reader.cursor import messages_of


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in names}


def normal(row: dict[str, Any], golden: GoldenSet) -> dict[str, Any]:
    """An expected line in our form: hosts as `ip:port`, the bit of compression cleared, ids."""
    row = dict(row)
    for name in ("born_host", "store_host"):
        row[name] = row[name].removeprefix("/")
    assert row.pop("body_null", row["body_length"] == 0) == (row["body_length"] == 0)
    if golden.has_codas:  # 5.2.0 alone keeps the bit when it decompresses
        row["sys_flag"] &= ~COMPRESSED
    if "UNIQ_KEY" in row["properties"]:
        row["msg_id"] = row["properties"]["UNIQ_KEY"]
    return row


def seen_by_the_client(row: dict[str, Any]) -> dict[str, Any]:
    """A line that `read` prints without the fields that the client's lines do not have."""
    host, _, port = row["store_host"].rpartition(":")
    place = f"{int(port):08X}{row['tier_physical_offset']:016X}"
    assert row["offset_msg_id"] == ip_address(host.strip("[]")).packed.hex().upper() + place
    ids = ["offset_msg_id"]
    if "UNIQ_KEY" not in row["properties"]:
        assert row["msg_id"] == row["offset_msg_id"]
        ids.append("msg_id")
    return without(row, *ids, "reconsume_times", "prepared_transaction_offset")


async def read_all(reader: TierReader, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every message of the queues that `rows` name, in their order, as `read --digest` prints."""
    found: list[dict[str, Any]] = []
    async with TieredMessageFetcher(reader, clock=SystemClock()) as fetcher:
        for queue in dict.fromkeys(QueueId(row["topic"], row["queue_id"]) for row in rows):
            container = reader.container(queue)
            assert container is not None
            offset = container.min_offset
            while offset < container.next_offset:
                result = await fetcher.get_message("g", *queue, offset, messages_max=100)
                messages = messages_of(result.messages, queue, None)
                found += [seen_by_the_client(message_row(one, digest=True)) for one in messages]
                assert result.next_offset > offset
                offset = result.next_offset
    return found


async def java_reader(store: PosixStore, tree: GoldenTree) -> TierReader:
    """A reader of the tier that the Java store wrote."""
    metadata = parse_java_metadata(tree.java_metadata.read_bytes(), path="metadata")
    golden = tree.golden
    java = await load_java_tier(store, metadata, cluster=golden.cluster, broker=golden.broker)
    assert not java.damage
    return TierReader(store, FixedMetadata(java.state))
