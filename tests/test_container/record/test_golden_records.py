"""Every record that real brokers wrote: decoded, encoded again, and compared with their answers."""

import hashlib
import ipaddress
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.names.rocketmq import parse_segment_name
from container.record.batch import decode_units, encode_units, rewrite_positions
from container.record.body import decompress
from container.record.checksum import RECORD_CRC_BYTES, has_record_crc, record_crc_is_valid
from container.record.header import COMPRESSED, MAGIC_V2, TRANSACTION_MASK
from container.record.message import StoredMessage
from container.record.properties import TAGS, tag_hash
from container.record.unit import ConsumeQueueUnit, Units
from container.record.verification import damaged_bodies, find_records, verify_records, walk_records
from tests.support.golden import (
    GOLDEN_SETS,
    GOLDEN_TREES,
    GoldenSet,
    GoldenTree,
    expected,
    tree_name,
    unpacked,
)

every_tree = pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
every_set = pytest.mark.parametrize("golden", GOLDEN_SETS, ids=tree_name)


def records_in(raw: bytes, path: str) -> Iterator[tuple[int, bytes]]:
    """Position and bytes of every record; a local file's zeroed rest is not one."""
    walk = walk_records(raw)
    assert walk.reason == "" or not any(raw[walk.end :]), f"{path} at {walk.end}: {walk.reason}"
    for start, size in zip(walk.starts.tolist(), walk.sizes.tolist(), strict=True):
        yield start, raw[start : start + size]


def address(text: str) -> tuple[str, int]:
    """`/1.2.3.4:5` or `/[::1]:5`, as Java prints a socket address."""
    host, _, port = text.lstrip("/").rpartition(":")
    return str(ipaddress.ip_address(host.strip("[]"))), int(port)


@every_tree
def test_every_record_decodes_and_encodes_to_the_same_bytes(golden: GoldenSet, kind: str) -> None:
    tree = unpacked(golden, kind)
    logs = [(str(start), raw) for start, raw in tree.local_commit_log()]
    logs += [(str(queue), tree.flat_bytes(queue, "COMMIT_LOG")) for queue in tree.queues()]
    count = 0
    for path, raw in logs:
        for start, record in records_in(raw, path):
            message = StoredMessage.decode(record, path=path, position=start)
            assert message.encode() == record
            assert message.body_is_intact
            count += 1
    assert count > 2 * len(expected(golden, "messages")) - 10 * len(tree.queues())


@every_tree
def test_local_records_carry_their_position_and_a_valid_checksum(
    golden: GoldenSet, kind: str
) -> None:
    with_checksum = 0
    for base, raw in unpacked(golden, kind).local_commit_log():
        for start, record in records_in(raw, str(base)):
            message = StoredMessage.decode(record, path=str(base), position=start)
            assert message.physical_offset == base + start
            assert record_crc_is_valid(record)
            with_checksum += has_record_crc(record)
    assert with_checksum == (len(expected(golden, "messages")) if golden.has_record_crc else 0)


@every_tree
def test_the_kernels_verify_every_tier_queue(golden: GoldenSet, kind: str) -> None:
    tree = unpacked(golden, kind)
    damaged = 0
    for queue in tree.queues():
        log = tree.flat_bytes(queue, "COMMIT_LOG")
        units = decode_units(tree.flat_bytes(queue, "CONSUME_QUEUE"))
        found = find_records(log, 0, units, queue_id=queue.queue_id, first_offset=0)
        assert len(found.faults) == len(units)
        assert not found.faults.any()
        walk = walk_records(log)
        assert (walk.end, walk.reason) == (len(log), "")
        assert np.array_equal(walk.starts, found.starts)
        assert np.array_equal(walk.sizes, found.sizes)
        verified = verify_records(
            log,
            found.starts,
            found.sizes,
            queue_id=queue.queue_id,
            queue_offsets=np.arange(len(units)),
            physical_positions=found.starts,
            topic=queue.topic.encode(),
        )
        assert (verified.count, verified.reason) == (len(units), "")
        damaged += len(damaged_bodies(log, found.starts, found.sizes))
        again = encode_units(units["position"], units["size"], units["tag_hash"])
        assert np.array_equal(again, units)
    assert damaged == (177 if golden.has_record_crc else 0)  # Java leaves the old checksum


@every_set
def test_every_record_says_what_the_official_client_read(golden: GoldenSet) -> None:
    tree = unpacked(golden)
    logs = {queue: tree.flat_bytes(queue, "COMMIT_LOG") for queue in tree.queues()}
    queues = {queue: decode_units(tree.flat_bytes(queue, "CONSUME_QUEUE")) for queue in logs}
    for line in expected(golden, "messages"):
        queue = QueueId(line["topic"], line["queue_id"])
        raw_unit = queues[queue][line["queue_offset"]].tobytes()
        unit = ConsumeQueueUnit.decode(raw_unit, path=str(queue), position=0)
        record = logs[queue][unit.position : unit.position + unit.size]
        message = StoredMessage.decode(record, path=str(queue), position=unit.position)
        body = decompress(message.body, message.sys_flag, path=str(queue), position=unit.position)
        found = {
            "topic": message.topic,
            "queue_id": message.queue_id,
            "queue_offset": message.queue_offset,
            "store_timestamp": message.store_timestamp,
            "born_timestamp": message.born_timestamp,
            "born_host": message.born_host,
            "store_host": message.store_host,
            "flag": message.flag,
            "sys_flag": message.sys_flag & ~COMPRESSED,
            "store_size": message.size,
            "tier_physical_offset": message.physical_offset,
            "body_crc": message.body_crc,
            "body_sha256": hashlib.sha256(body).hexdigest(),
            "body_length": len(body),
            "properties": message.property_map,
        }
        hosts = {name: address(line[name]) for name in ("born_host", "store_host")}
        # 5.2.0's decoder leaves the bit of a body that it decompressed, later ones clear it
        flags = {"sys_flag": line["sys_flag"] & ~COMPRESSED}
        assert found == {name: line[name] for name in found} | hosts | flags
        assert unit.tag_hash == tag_hash(message.property_map.get(TAGS, ""))


def joined(log: bytes, units: Units) -> NDArray[np.uint8]:
    rows = zip(units["position"].tolist(), units["size"].tolist(), strict=True)
    return np.frombuffer(bytearray(b"".join(log[at : at + size] for at, size in rows)), np.uint8)


@every_tree
def test_local_records_with_rewritten_positions_are_the_tiers(golden: GoldenSet, kind: str) -> None:
    """The way from hot to cold: gather a queue's records, rewrite bytes 28..35, compare."""
    tree = unpacked(golden, kind)
    local = tree.local_commit_log()
    log = b"".join(raw for _, raw in local)
    for queue in tree.queues():
        files = sorted((tree.store / "consumequeue" / queue.topic / str(queue.queue_id)).iterdir())
        tier = decode_units(tree.flat_bytes(queue, "CONSUME_QUEUE"))
        units = decode_units(b"".join(path.read_bytes() for path in files))[: len(tier)]
        assert np.array_equal(units["size"], tier["size"])
        assert np.array_equal(units["tag_hash"], tier["tag_hash"])
        sizes = units["size"].astype(np.int64)
        data = joined(log, units)
        starts = np.cumsum(sizes) - sizes
        rewrite_positions(data, starts, sizes, tier["position"].astype(np.int64))
        java = tree.flat_bytes(queue, "COMMIT_LOG")
        theirs = joined(java, tier)
        assert len(damaged_bodies(data, starts, sizes)) == 0
        if golden.has_record_crc:
            for end in (starts + sizes).tolist():
                for whole in (data, theirs):
                    whole[end - RECORD_CRC_BYTES : end] = 0
        assert data.tobytes() == theirs.tobytes()


@every_tree
def test_every_path_of_a_java_tier_is_one_of_our_names(golden: GoldenSet, kind: str) -> None:
    directory = unpacked(golden, kind).broker_directory
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert files
    for path in files:
        relative = str(path.relative_to(directory))
        parsed = parse_segment_name(relative)
        assert str(parsed) == relative


def count_of(tree: GoldenTree, wanted: str) -> int:
    """How many local records have a property that the data set is known to hold."""
    count = 0
    for base, raw in tree.local_commit_log():
        for start, record in records_in(raw, str(base)):
            message = StoredMessage.decode(record, path=str(base), position=start)
            holds = {
                "version 2": message.magic == MAGIC_V2,
                "IPv6": ":" in message.born_host[0],
                "compressed": bool(message.sys_flag & COMPRESSED),
                "empty": not message.body,
                "transaction": bool(message.sys_flag & TRANSACTION_MASK),
            }
            count += holds[wanted]
    return count


def test_the_golden_data_holds_what_the_tests_rely_on() -> None:
    variants, broker = (unpacked(GOLDEN_SETS[2]), unpacked(GOLDEN_SETS[0]))
    for wanted in ("version 2", "IPv6", "compressed", "empty"):
        assert count_of(variants, wanted) > 0, wanted
    assert count_of(broker, "transaction") > 0
    assert count_of(broker, "compressed") > 0
