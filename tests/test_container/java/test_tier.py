"""A tier that the Java store wrote, damaged or with units that point at codas: the same rule."""

import re
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from container.check.tier import check_tier
from container.java.metadata import parse_java_metadata
from container.java.migration import read_java_tier
from container.java.tier import load_java_tier
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.rocketmq import parse_segment_name
from container.queue.point_reads import read_records_at
from container.record.batch import decode_units
from container.record.header import BLANK_MAGIC
from container.tier_view import FixedMetadata, TierReader
from fetcher.fetcher import TieredMessageFetcher
from provider.disk_cache.use import current_use
from provider.errors import Corrupt, StoreError
from provider.object_store import Buffer
from provider.posix.store import PosixStore
from provider.ranges import ByteRange, QueueOffset
from tests.support.cli import settings
from tests.support.golden import VARIANTS_520, GoldenTree, unpack
from tieredstore.cli.main import cli


@pytest.fixture
def tree(tmp_path: Path) -> GoldenTree:
    return unpack(VARIANTS_520, "closed", tmp_path)


async def opened(tree: GoldenTree) -> TierReader:
    store = PosixStore(tree.broker_directory)
    metadata = parse_java_metadata(tree.java_metadata.read_bytes(), path="metadata")
    golden = tree.golden
    java = await load_java_tier(store, metadata, cluster=golden.cluster, broker=golden.broker)
    return TierReader(store, FixedMetadata(java.state), queue_damage=java.damage)


async def contents(tree: GoldenTree) -> dict[QueueId, list[bytes]]:
    """Every record of every queue as a reader gets it, a message at a time."""
    reader = await opened(tree)
    found: dict[QueueId, list[bytes]] = {}
    async with TieredMessageFetcher(reader) as fetcher:
        for queue in tree.queues():
            records = found.setdefault(queue, [])
            result = await fetcher.get_message("g", *queue, 0, messages_max=1)
            while len(result.messages):
                records.append(bytes(result.messages[0]))
                at = result.next_offset
                result = await fetcher.get_message("g", *queue, at, messages_max=1)
    await reader.store.close()
    return found


async def only_damage(tree: GoldenTree) -> StoreError:
    """Of a tier with one queue, or the index, that cannot be served; all others can."""
    reader = await opened(tree)
    await reader.store.close()
    ((queue, damage),) = reader.queue_damage.items()
    assert isinstance(damage, Corrupt)
    assert reader.state.queues.keys() == set(tree.queues()) - {queue}
    return damage


def invoke(tree: GoldenTree, *words: str | Path) -> Result:
    return CliRunner().invoke(cli, [*settings(tree, tree.tier), *map(str, words)])


def point_at_codas(tree: GoldenTree) -> int:
    """Change each unit whose record lies behind a coda to point at the coda; how many they are."""
    count = 0
    for queue in tree.queues():
        log = tree.flat_bytes(queue, "COMMIT_LOG")
        for _, path in tree.segments(queue, "CONSUME_QUEUE"):
            raw = bytearray(path.read_bytes())
            for number, position in enumerate(decode_units(raw)["position"].tolist()):
                coda = position - 16
                if coda > 0 and log[coda : coda + 8] == struct.pack(">iI", 16, BLANK_MAGIC):
                    struct.pack_into(">q", raw, 20 * number, coda)
                    count += 1
            path.write_bytes(raw)
    return count


async def test_units_that_point_at_codas_are_read_checked_and_imported_like_others(
    tree: GoldenTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = await contents(tree)
    assert point_at_codas(tree) == 3
    assert await contents(tree) == before
    # Each unit is the last of a read once: the read must go on behind the coda.
    for module in ("check.queue", "java.migration"):
        monkeypatch.setattr(f"container.{module}.UNITS_AT_ONCE", 1)
    reader = await opened(tree)
    assert [str(one) async for one in check_tier(reader, journal=False)] == []
    await reader.store.close()


async def test_a_few_records_behind_codas_are_those_that_a_reader_gets(tree: GoldenTree) -> None:
    before = await contents(tree)
    assert point_at_codas(tree) == 3
    reader = await opened(tree)
    for queue, records in before.items():
        container = reader.container(queue)
        assert container is not None
        offsets = [QueueOffset(offset) for offset in range(len(records))]
        found = await read_records_at(container, offsets, bytes_max=1 << 30, history=True)
        assert found == records
        for offset, record in zip(offsets, records, strict=True):
            assert await read_records_at(container, [offset], bytes_max=1, history=True) == [record]
    await reader.store.close()


def test_an_import_with_units_that_point_at_codas_is_sound(
    tree: GoldenTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = unpack(VARIANTS_520, "closed", tree.root.parent / "plain")
    point_at_codas(tree)
    monkeypatch.setattr("container.java.migration.UNITS_AT_ONCE", 1)
    printed: list[str] = []
    for one in (tree, plain):
        assert invoke(one, "metadata", "import", one.java_metadata).exit_code == 0
        assert invoke(one, "check", "--json").stdout == ""
        printed.append(invoke(one, "segments", "--json").stdout)
    assert printed[0] == printed[1]


def test_an_import_of_a_damaged_record_names_it_and_is_refused(tree: GoldenTree) -> None:
    queue = tree.queues()[0]
    _, path = tree.segments(queue, "COMMIT_LOG")[0]
    size = int.from_bytes(path.read_bytes()[:4], "big")
    raw = bytearray(path.read_bytes())
    raw[size + 4] ^= 1
    path.write_bytes(raw)
    refused = invoke(tree, "metadata", "import", tree.java_metadata)
    assert refused.exit_code != 0
    assert f"{queue}/COMMIT_LOG" in refused.stderr
    assert str(size) in refused.stderr
    assert invoke(tree, "topics", "--json").stdout == ""


def test_an_import_of_a_record_with_a_damaged_body_is_refused(tree: GoldenTree) -> None:
    """Its bytes would have a valid checksum from then on."""
    queue = next(queue for queue in tree.queues() if queue.topic == "V_Hash")
    _, path = tree.segments(queue, "COMMIT_LOG")[0]
    raw = bytearray(path.read_bytes())
    raw[88] ^= 1
    path.write_bytes(raw)
    refused = invoke(tree, "metadata", "import", tree.java_metadata)
    assert refused.exit_code != 0
    assert f"{queue} cannot be imported: the body or the whole record" in refused.stderr
    assert invoke(tree, "topics", "--json").stdout == ""


class ChangingStore(PosixStore):
    """A byte of a file is another one when it is read alone, after it was read with others."""

    def __init__(self, directory: Path, changed: SegmentType) -> None:
        super().__init__(directory)
        self._type = changed

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        use = current_use()
        assert use is not None
        assert use.is_past
        raw = bytearray(await super().read(name, wanted))
        parsed = parse_segment_name(name)
        assert parsed is not None
        if parsed.type is self._type:
            raw[19] ^= 1
        return bytes(raw)


@pytest.mark.parametrize("changed", FLAT_FILES)
async def test_no_checksum_is_made_of_bytes_that_were_not_verified(
    tree: GoldenTree, changed: SegmentType
) -> None:
    reader = await opened(tree)
    await reader.store.close()
    store = ChangingStore(tree.broker_directory, changed)
    reader = TierReader(store, FixedMetadata(reader.state))
    contents = await read_java_tier(reader, extent_bytes_max=1 << 20, progress=lambda _: None)
    assert contents.queues == []
    assert contents.damage.keys() == set(tree.queues())
    for damage in contents.damage.values():
        assert "read otherwise when it was verified" in str(damage)
    await store.close()


@pytest.mark.parametrize("byte", [4, 15, 24, 35])
@pytest.mark.parametrize("lost", [0, 7], ids=["from-zero", "head-expired"])
async def test_a_damaged_first_record_hides_neither_the_others_nor_where_the_log_begins(
    tree: GoldenTree, byte: int, lost: int
) -> None:
    queue = max(tree.queues(), key=lambda one: len(tree.flat_bytes(one, "CONSUME_QUEUE")))
    before = await contents(tree)
    (_, units), *_ = tree.segments(queue, "CONSUME_QUEUE")
    if lost:  # as if the log began there
        raw = bytearray(units.read_bytes())
        for number in range(lost):
            struct.pack_into(">q", raw, 20 * number, number - 1_000)
        units.write_bytes(raw)
    position = int(decode_units(units.read_bytes())["position"][lost])
    _, path = tree.segments(queue, "COMMIT_LOG")[0]
    raw = bytearray(path.read_bytes())
    raw[byte] ^= 1
    if lost:
        raw[:48] = raw[position : position + 48]
        raw[byte] ^= 0x7F
    path.write_bytes(raw)
    reader = await opened(tree)
    assert {one: reader.state.queues[one].next_offset for one in before} == {
        one: len(records) for one, records in before.items()
    }
    container = reader.container(queue)
    assert container is not None
    assert container.min_offset == lost
    async with TieredMessageFetcher(reader) as fetcher:
        if not lost:
            with pytest.raises(Corrupt, match=f"{queue}/COMMIT_LOG"):
                await fetcher.get_message("g", *queue, 0, messages_max=1)
        at = container.min_offset + 1
        found = await fetcher.get_message("g", *queue, at, messages_max=1)
        assert bytes(found.messages[0]) == before[queue][at]
    await reader.store.close()


@pytest.mark.parametrize("kind", ["commitLog", "consumeQueue", "index"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("baseOffset", -(2**63)), ("baseOffset", 2**63 - 1), ("baseOffset", -20), ("size", -720)],
)
async def test_metadata_of_a_segment_that_cannot_be_is_corrupt(
    tree: GoldenTree, kind: str, field: str, value: int
) -> None:
    before, table, behind = tree.java_metadata.read_text().partition(f'"{kind}FileSegmentTable"')
    behind = re.sub(rf'"{field}":\s*[0-9]+', f'"{field}":{value}', behind, count=1)
    tree.java_metadata.write_text(before + table + behind)
    assert "segment of" in str(await only_damage(tree))


async def test_units_that_begin_inside_one_are_corrupt(tree: GoldenTree) -> None:
    before, table, behind = tree.java_metadata.read_text().partition('"consumeQueueFileSegm')
    behind = re.sub(r'"baseOffset":\s*0', '"baseOffset":7', behind, count=1)
    tree.java_metadata.write_text(before + table + behind)
    assert "inside a unit" in str(await only_damage(tree))
