"""Topic, lengths and checksums of a batch: what one record at a time would find."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.record.batch import PREFIX_DTYPE, headers_at
from container.record.checksum import body_crc_of
from container.record.columns import ANOTHER_BODY, ANOTHER_TOPIC, Contents, verify_contents
from container.record.header import MAGIC_AT, locate_parts
from provider.errors import Corrupt
from tests.support.messages import make_message, messages

TOPIC = "TopicTest"


def verified(records: list[bytes], topic: str = TOPIC) -> Contents:
    sizes = np.array([len(record) for record in records], np.int64)
    starts = np.cumsum(sizes) - sizes
    raw = b"".join(records)
    headers = headers_at(raw, starts, PREFIX_DTYPE)
    return verify_contents(raw, starts, sizes, headers, topic=topic.encode())


def sound_by_definition(records: list[bytes], topic: str) -> int:
    for index, record in enumerate(records):
        try:
            header, parts = locate_parts(record, path="", position=0)
        except Corrupt:
            return index
        if record[parts.topic : parts.topic_end] != topic.encode():
            return index
        if body_crc_of(record[parts.body : parts.body_end]) != header.body_crc:
            return index
    return len(records)


@st.composite
def batches(draw: st.DrawFn) -> tuple[str, list[bytes]]:
    """Records of one topic, of one shape or of several."""
    first = draw(messages())
    several = draw(st.lists(messages(first.topic), max_size=6))
    bodies = (b"", b"b" * 100)
    alike = [first._replace(body=body, body_crc=body_crc_of(body)) for body in bodies]
    made = draw(st.permutations([first, *several, *alike]))
    return first.topic, [one.encode() for one in made]


@given(batches(), st.data())
def test_a_batch_is_sound_as_far_as_each_record_is(
    batch: tuple[str, list[bytes]], data: st.DataObject
) -> None:
    topic, records = batch
    found = verified(records, topic)
    assert (found.good, found.reason) == (len(records), "")
    bad = data.draw(st.integers(0, len(records) - 1))
    damaged = bytearray(records[bad])
    # What `judge_headers` compares before is not damaged: the size, and a magic that is known.
    at = data.draw(st.integers(MAGIC_AT + 4, len(damaged) - 1))
    damaged[at] ^= data.draw(st.integers(1, 255))
    records[bad] = bytes(damaged)
    found = verified(records, topic)
    assert found.good == sound_by_definition(records, topic)
    assert bool(found.reason) == (found.good < len(records))
    for record, place in zip(records, found.properties_at.tolist(), strict=False):
        assert locate_parts(record, path="", position=0)[1].properties == place


def five() -> list[bytearray]:
    return [bytearray(make_message(offset, body=b"body").encode()) for offset in range(5)]


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (88, b"B", ANOTHER_BODY),
        (8, b"\1", ANOTHER_BODY),
        (93, b"t", ANOTHER_TOPIC),
        (87, b"\5", "impossible topic length"),
        (92, b"\7", "properties have"),
        (84, b"\x7f", "impossible body length"),
    ],
)
def test_each_lie_ends_the_sound_ones_with_its_reason(at: int, value: bytes, reason: str) -> None:
    records = five()
    records[3][at : at + 1] = value
    found = verified([bytes(record) for record in records])
    assert (found.good, len(found.properties_at)) == (3, 3)
    assert reason in found.reason


def test_the_first_of_several_damages_counts() -> None:
    records = five()
    records[1][88] ^= 1  # the body
    records[2][93] ^= 1  # the topic
    assert verified([bytes(record) for record in records])[:2] == (1, ANOTHER_BODY)


def test_a_topic_that_the_version_cannot_hold_is_another() -> None:
    long = "T" * 200
    records = [make_message(offset, topic=long).encode() for offset in range(3)]
    assert verified(records, long)[:2] == (3, "")
    damaged = bytearray(records[1])
    damaged[MAGIC_AT + 3] = 0xA7  # v1 in place of v2
    assert verified([records[0], bytes(damaged), records[2]], long).good == 1


def test_no_record_is_sound_too() -> None:
    found = verified([])
    assert (found.good, found.reason, found.shape) == (0, "", None)
