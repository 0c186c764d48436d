"""D5 over real files: what a default read of a damaged tier gives, and what it refuses."""

from pathlib import Path
from random import Random

import pytest

import tieredstore
from container.record.unit import UNIT_BYTES
from tests.support.fake_broker import FakeBroker
from tieredstore import sync

CLUSTER, BROKER = "C", "b"
MESSAGES = 60
TAGS = ("TagA", "TagB")
DAMAGED = pytest.mark.leaves_findings(
    "checksum", "body-crc", "record", "tag-hash", why="files of the tier are changed"
)


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    """A tier with two topics whose records have equal sizes."""
    broker = FakeBroker(tmp_path / "store")
    for topic in ("Alpha", "Omega"):
        for offset in range(MESSAGES):
            body = f"{topic} {offset:04d}".encode() * 8
            broker.put(topic, 0, body, tags=TAGS[offset % 2], keys=f"{topic}-{offset:04d}")
    root = tmp_path / "tier"
    with sync.follow(broker.directory, root, cluster=CLUSTER, broker=BROKER) as ours:
        ours.drain()
    return root


def file_of(tier: Path, topic: str, kind: str) -> Path:
    (found,) = tier.glob(f"*/*/{topic}/0/{kind}/*")
    return found


def flip(path: Path, byte: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[byte] ^= 1 << bit
    path.write_bytes(raw)


async def read(
    tier: Path, topic: str = "Alpha", tags: str | None = None, *, verify: bool = True
) -> tuple[list[tieredstore.Message], tieredstore.Corrupt | None]:
    found: list[tieredstore.Message] = []
    given = {} if verify else {"tieredStoreCrcCheckEnable": False}
    async with tieredstore.open(tier, settings=given) as opened:
        try:
            async for message in opened.messages(topic, 0, tags=tags):
                found.append(message)  # noqa: PERF401 - kept when the next one raises
        except tieredstore.Corrupt as error:
            return found, error
    return found, None


@DAMAGED
async def test_files_of_two_topics_that_were_swapped_give_no_message(tier: Path) -> None:
    one, other = (file_of(tier, topic, "COMMIT_LOG") for topic in ("Alpha", "Omega"))
    first, second = one.read_bytes(), other.read_bytes()
    assert len(first) == len(second)
    one.write_bytes(second)
    other.write_bytes(first)
    for topic in ("Alpha", "Omega"):
        found, error = await read(tier, topic)
        assert found == []
        assert error is not None
        assert "another topic" in str(error)


def raw_of(messages: list[tieredstore.Message]) -> list[bytes]:
    return [message.stored.encode() for message in messages]


@pytest.mark.slow
@DAMAGED
async def test_no_flipped_bit_of_a_log_is_served(tier: Path) -> None:
    """200 flips anywhere, also where no checksum of the record itself covers the byte."""
    truth = raw_of((await read(tier))[0])
    log = file_of(tier, "Alpha", "COMMIT_LOG")
    raw = log.read_bytes()
    size = len(raw) // MESSAGES
    rng = Random(5)
    for _ in range(200):
        byte = rng.randrange(len(raw))
        flip(log, byte, rng.randrange(8))
        found, error = await read(tier)
        assert raw_of(found) == truth[: byte // size]
        assert error is not None
        assert error.position == byte - byte % size
        log.write_bytes(raw)


@DAMAGED
async def test_a_flipped_bit_of_a_key_is_named_again_and_passed(tier: Path) -> None:
    truth = raw_of((await read(tier))[0])
    log = file_of(tier, "Alpha", "COMMIT_LOG")
    flip(log, log.read_bytes().index(b"Alpha-0037"))
    damaged: list[int] = []
    async with tieredstore.open(tier) as opened:
        reading = opened.messages(
            "Alpha", 0, on_damage=lambda _, offset, __: damaged.append(offset)
        )
        assert raw_of([one async for one in reading]) == truth[:37] + truth[38:]
        assert damaged == [37]
        for offset in (37, 37):
            with pytest.raises(tieredstore.Corrupt, match="CRC-32C") as refused:
                await anext(opened.messages("Alpha", 0, offset=offset))
            assert refused.value.position == 37 * len(truth[0])
    async with tieredstore.open(tier) as opened:  # as a reader that was restarted there
        with pytest.raises(tieredstore.Corrupt, match="CRC-32C"):
            await anext(opened.messages("Alpha", 0, offset=37))
        reading = opened.messages("Alpha", 0, offset=38)
        assert raw_of([one async for one in reading]) == truth[38:]


@DAMAGED
async def test_bits_of_two_keys_refuse_the_first_message_of_their_extent(tier: Path) -> None:
    truth = raw_of((await read(tier))[0])
    log = file_of(tier, "Alpha", "COMMIT_LOG")
    raw = log.read_bytes()
    for key in (b"Alpha-0037", b"Alpha-0041"):
        flip(log, raw.index(key))
    found, error = await read(tier)
    assert found == []
    assert error is not None
    assert (error.position, "CRC-32C" in error.reason) == (0, True)
    damaged: list[int] = []
    async with tieredstore.open(tier) as opened:
        reading = opened.messages(
            "Alpha", 0, on_damage=lambda _, offset, __: damaged.append(offset)
        )
        served = [one.offset async for one in reading]
    assert (damaged, served) == ([0], list(range(1, len(truth))))


@DAMAGED
async def test_a_small_read_compares_bodies_alone(tier: Path) -> None:
    log = file_of(tier, "Alpha", "COMMIT_LOG")
    flip(log, log.read_bytes().index(b"Alpha-0037"))
    async with tieredstore.open(tier) as opened:
        result = await opened.get_message("g", "Alpha", 0, 30, messages_max=10)
        assert len(result.messages) == 10
    flip(log, log.read_bytes().index(b"Alpha 0035"))
    async with tieredstore.open(tier) as opened:
        result = await opened.get_message("g", "Alpha", 0, 30, messages_max=10)
        assert len(result.messages) == 5


@DAMAGED
async def test_a_flipped_tags_code_in_a_file_is_named_by_a_filtered_read(tier: Path) -> None:
    units = file_of(tier, "Alpha", "CONSUME_QUEUE")
    flip(units, UNIT_BYTES * 20 + 19)
    found, error = await read(tier, tags="TagA")
    assert [message.offset for message in found] == list(range(0, 20, 2))
    assert error is not None
    assert error.position == UNIT_BYTES * 20
    found, error = await read(tier)
    assert (len(found), error) == (MESSAGES, None)
    found, error = await read(tier, tags="TagA", verify=False)
    assert error is None
    assert len(found) == MESSAGES // 2 - 1


@DAMAGED
async def test_no_flipped_bit_of_a_tag_hides_its_message_from_a_filtered_read(tier: Path) -> None:
    log = file_of(tier, "Alpha", "COMMIT_LOG")
    raw = log.read_bytes()
    begin = raw.index(b"TagA", raw.index(b"Alpha-0020") - 40)
    for byte in range(begin, begin + 4):
        for bit in range(8):
            flip(log, byte, bit)
            found, error = await read(tier, tags="TagA")
            assert error is not None or len(found) == MESSAGES // 2
            log.write_bytes(raw)


@DAMAGED
async def test_an_explicit_false_switches_the_checksums_off(tier: Path) -> None:
    truth, _ = await read(tier)
    log = file_of(tier, "Alpha", "COMMIT_LOG")
    flip(log, log.read_bytes().index(b"Alpha 0007"))
    found, error = await read(tier)
    assert (found, error is None) == (truth[:7], False)
    found, error = await read(tier, verify=False)
    assert (len(found), error) == (MESSAGES, None)
    assert found[7].body != truth[7].body


@DAMAGED
async def test_extents_are_compared_whole_on_a_word_also_for_their_first_message(
    tier: Path,
) -> None:
    log = file_of(tier, "Alpha", "COMMIT_LOG")
    flip(log, log.read_bytes().index(b"Alpha-0007"))  # a key, which has no checksum of its own
    assert len((await read(tier))[0]) == 7
    async with tieredstore.open(tier, settings={"tieredStoreExtentCheckEnable": True}) as opened:
        with pytest.raises(tieredstore.Corrupt, match="CRC-32C"):
            await anext(opened.messages("Alpha", 0))


@DAMAGED
async def test_a_filtered_read_names_a_flipped_key_again_too(tier: Path) -> None:
    log = file_of(tier, "Alpha", "COMMIT_LOG")
    flip(log, log.read_bytes().index(b"Alpha-0036"))
    async with tieredstore.open(tier) as opened:
        for _ in range(2):
            result = await opened.get_message("g", "Alpha", 0, 0, messages_max=1000)
            assert result.messages.offsets.tolist() == list(range(36))
            with pytest.raises(tieredstore.Corrupt, match="CRC-32C"):
                await opened.get_message("g", "Alpha", 0, 36, messages_max=20, subscription="TagA")
        result = await opened.get_message(
            "g", "Alpha", 0, 37, messages_max=1000, subscription="TagA"
        )
        assert result.messages.offsets.tolist() == list(range(38, MESSAGES, 2))
