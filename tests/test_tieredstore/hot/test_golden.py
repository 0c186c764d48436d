"""Messages of real brokers, appended here, give the brokers' files byte for byte."""

import shutil
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.record.checksum import RECORD_CRC_BYTES
from container.record.header import BLANK_MAGIC, BlankRecord, RecordHeader
from container.record.message import StoredMessage
from provider.errors import Corrupt
from tests.support.golden import GOLDEN_SETS, GoldenSet, GoldenTree, tree_name, unpacked
from tests.support.hot_store import all_topics_taken, appender_at, as_new, put
from tieredstore.hot.encoding import SCHEDULE_TOPIC, NewMessage, encode_message, kept_together
from tieredstore.hot.options import HotWriteOptions


def records_of(tree: GoldenTree) -> list[StoredMessage]:
    """The broker's messages in the order of its CommitLog."""
    found: list[StoredMessage] = []
    for base, raw in tree.local_commit_log():
        at = 0
        while at < len(raw):
            size, magic = BlankRecord.LAYOUT.unpack_from(raw, at)
            if magic == BLANK_MAGIC or not size:
                break
            try:
                header = RecordHeader.decode(raw[at:], path="", position=base + at)
            except Corrupt:
                break
            found.append(StoredMessage.decode(raw[at : at + header.size], path="", position=at))
            at += size
    return found


def batches_of(messages: list[StoredMessage]) -> list[list[StoredMessage]]:
    """Those that a client sent as one batch, together: they have one time, host and queue."""
    is_alike = attrgetter("topic", "queue_id", "born_timestamp", "store_timestamp", "born_host")
    return [list(group) for _, group in groupby(messages, is_alike)]


def sent(message: StoredMessage, *, has_crc: bool) -> NewMessage:
    """The message without the checksum that its broker appended to the properties."""
    properties = message.properties
    return as_new(message, properties=properties[:-RECORD_CRC_BYTES] if has_crc else properties)


@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=tree_name)
def test_the_files_are_javas_byte_for_byte(golden: GoldenSet, tmp_path: Path) -> None:
    tree = unpacked(golden)
    options = HotWriteOptions(
        commit_log_bytes=golden.commit_log_file_bytes,
        consume_queue_bytes=golden.consume_queue_file_bytes,
        record_crc=golden.has_record_crc,
    )
    messages = records_of(tree)
    assert len(messages) > 100
    with all_topics_taken(), appender_at(tmp_path / "store", options) as ours:
        for batch in batches_of(messages):
            records = [
                encode_message(sent(m, has_crc=golden.has_record_crc), m.store_timestamp, options)
                for m in batch
            ]
            appended = ours.append(kept_together(records, options)).appended
            assert [(a.position, a.queue_offset) for a in appended] == [
                (m.physical_offset, m.queue_offset) for m in batch
            ]
        ours.close()
    for base, raw in tree.local_commit_log():
        path = ours.log.path(base)
        mine = path.read_bytes() if path.exists() else bytes(len(raw))  # made ahead, by Java
        assert mine == raw, base
    compared = scheduled = 0
    for path in (tree.store / "consumequeue").glob("*/*/*"):
        topic, queue_id = path.parts[-3:-1]
        scheduled += topic == SCHEDULE_TOPIC  # its units have times of delivery
        queue = QueueId(topic, int(queue_id))
        assert ours.queues.path(queue, int(path.name)).read_bytes() == path.read_bytes(), queue
        compared += 1
    assert compared == sum(len(bases) for bases in ours.queues.bases.values())
    assert compared > 5
    assert (scheduled > 0) == any(one.topic == SCHEDULE_TOPIC for one in messages)


@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=tree_name)
def test_a_directory_of_java_is_opened_and_written_on(golden: GoldenSet, tmp_path: Path) -> None:
    """Copied and opened after its clean end; the old files keep their bytes."""
    tree = unpacked(golden)
    store = tmp_path / "store"
    shutil.copytree(tree.store, store)
    messages = records_of(tree)
    options = HotWriteOptions(
        commit_log_bytes=golden.commit_log_file_bytes,
        consume_queue_bytes=golden.consume_queue_file_bytes,
    )
    for was_closed in (True, False):
        if not was_closed:
            (store / "abort").touch()
        with appender_at(store, options) as ours:
            last = messages[-1]
            assert ours.end == last.physical_offset + last.size
            ends = {
                QueueId(m.topic, m.queue_id): m.queue_offset + 1
                for m in messages
                if m.sys_flag & 0xC not in (0x4, 0xC)
            }
            assert ours.next_offsets == ends
            for path in (tree.store / "consumequeue").glob("*/*/*"):
                assert (store / path.relative_to(tree.store)).read_bytes() == path.read_bytes()
            ours.close()
    with appender_at(store, options) as ours:
        (queue, end), *_ = sorted(ends.items())
        appended = put(ours, [NewMessage(queue.topic, queue.queue_id, b"more")])
        assert appended[0].queue_offset == end


@pytest.mark.parametrize("golden", GOLDEN_SETS, ids=tree_name)
def test_units_of_a_javas_directory_that_are_lost_are_rebuilt_byte_for_byte(
    golden: GoldenSet, tmp_path: Path
) -> None:
    tree = unpacked(golden)
    store = tmp_path / "store"
    shutil.copytree(tree.store, store)
    shutil.rmtree(store / "consumequeue")
    options = HotWriteOptions(
        commit_log_bytes=golden.commit_log_file_bytes,
        consume_queue_bytes=golden.consume_queue_file_bytes,
    )
    with appender_at(store, options) as ours:
        ours.close()
    for path in (tree.store / "consumequeue").glob("*/*/*"):
        rebuilt = store / path.relative_to(tree.store)
        raw = path.read_bytes()
        if any(raw):
            assert rebuilt.read_bytes() == raw, path
