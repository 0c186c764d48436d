"""New messages as records: equal to the records of `StoredMessage.compose`, and within limits."""

import asyncio
import re
from array import array
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from container.names.queue_id import check_path_component
from container.record.checksum import RECORD_CRC_BYTES, record_crc_is_valid
from container.record.header import TRANSACTION_MASK
from container.record.message import StoredMessage
from container.record.properties import TAGS, decode_properties, tag_hash
from container.record.unit import ConsumeQueueUnit
from dispatcher.topic_filter import QUEUE_ID_MAX, untiered_reason
from provider.clock import SystemClock
from tests.support.hot_store import as_new
from tests.support.messages import messages, property_maps, topics, with_record_crc
from tieredstore.hot.encoding import (
    INNER_BATCH,
    MessageRefused,
    NewMessage,
    encode_message,
    plan_append,
    prepare,
)
from tieredstore.hot.hot_log import open_hot_log
from tieredstore.hot.options import HotWriteOptions

OPTIONS = HotWriteOptions()
NAMES = topics.filter(
    lambda topic: check_path_component(topic) is None and not untiered_reason(topic)
)


@given(
    NAMES.flatmap(messages),
    st.integers(0, QUEUE_ID_MAX),
    st.integers(0, 2**40),
    st.sampled_from([0, 20]),
)
def test_a_record_is_the_one_that_the_format_says(
    message: StoredMessage, queue_id: int, offset: int, crc_bytes: int
) -> None:
    record_crc = crc_bytes > 0
    assume(not message.properties.endswith(b"\0"))
    message = message._replace(sys_flag=message.sys_flag & ~INNER_BATCH)
    options = replace(OPTIONS, record_crc=record_crc)
    new = as_new(message, queue_id=queue_id)
    prepared = encode_message(new, message.store_timestamp, options)
    plan = plan_append(
        512, {prepared.queue: offset}, [prepared], file_bytes=1 << 30, record_crc=record_crc
    )
    has_unit = message.sys_flag & TRANSACTION_MASK not in (0x4, 0xC)
    properties = message.properties
    if record_crc and properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    expected = message._replace(
        queue_id=queue_id,
        queue_offset=offset if has_unit else 0,
        physical_offset=512,
        properties=properties,
    )
    wanted = with_record_crc(expected) if record_crc else expected.encode()
    raw = b"".join(plan.files[0].parts)
    assert raw == wanted
    assert record_crc_is_valid(raw)
    assert plan.end == 512 + prepared.size == 512 + len(raw)
    tags = decode_properties(message.properties).get(TAGS, "")
    unit = ConsumeQueueUnit(512, len(raw), tag_hash(tags)).encode()
    assert plan.files[0].units == ({prepared.queue: (offset, bytearray(unit))} if has_unit else {})


@given(property_maps)
def test_properties_may_be_given_as_names_and_values(properties: dict[str, str]) -> None:
    prepared = prepare(NewMessage("T", 0, b"", properties), 1, OPTIONS)
    stored = prepared.after[len(b"\x01T") + 2 :]
    assert decode_properties(stored) == properties
    assert prepared.tag_code == tag_hash(properties.get(TAGS, ""))


def test_a_tag_is_hashed_as_it_is_stored() -> None:
    """An unpaired surrogate is stored as `?`."""
    prepared = prepare(NewMessage("T", 0, b"", {"TAGS": "a\ud800"}), 1, OPTIONS)
    assert prepared.tag_code == tag_hash("a?")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "body": ({"body": bytes(OPTIONS.message_bytes_max + 1)}, "more than 4194304 .maxMessageSize"),
    "no body": ({"body": None}, "The body is None"),
    "text body": ({"body": "hello"}, r"The body is text, not bytes: say body.encode\(\)"),
    "number body": ({"body": 17}, "The body is of type int, not bytes"),
    "topic type": ({"topic": b"T"}, "The topic is of type bytes, not str"),
    "queue type": ({"queue_id": "0"}, "The queue id is of type str, not int"),
    "properties type": ({"properties": "TAGS"}, "of type str, neither a mapping nor bytes"),
    "properties": ({"properties": b"x" * 32768}, "32768 bytes, more than 32767"),
    "separator": ({"properties": {"a": "b\x02"}}, "holds a separator"),
    "torn": ({"properties": b"a\x01b\0"}, "look like a torn record"),
    "zeros": ({"properties": {"a": "\0" * 4096}}, "look like a torn record"),
    "empty topic": ({"topic": ""}, "it is empty"),
    "path in topic": ({"topic": "a/b"}, "path separator"),
    "long topic": ({"topic": "x" * 256}, "256 bytes, more than 255"),
    "queue": ({"queue_id": -1}, "The queue id is -1"),
    "large queue": ({"queue_id": 1 << 31}, "The queue id is 2147483648"),
    "host": ({"born_host": ("localhost", 1)}, "not a name: 'localhost'"),
    "flag": ({"flag": 1 << 31}, "does not fit its field"),
    "port": ({"born_host": ("::1", 1 << 31)}, "does not fit its field"),
}


@pytest.mark.parametrize(("changes", "text"), REFUSED.values(), ids=REFUSED)
def test_a_message_that_no_record_holds_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(MessageRefused, match=text):
        prepare(NewMessage("T", 0, b"body")._replace(**changes), 1, OPTIONS)


async def test_one_of_another_type_is_named_and_none_of_its_call_is_appended(
    tmp_path: Path,
) -> None:
    good = NewMessage("T", 0, b"body")
    wrong: list[Any] = [good._replace(body="text"), good._replace(body=17), {"body": b""}, None]  # type: ignore[arg-type]
    async with open_hot_log(tmp_path, options=OPTIONS, clock=SystemClock()) as log:
        for one in wrong:
            for many in ([one], [good, one], [good, good, good, one, good]):
                with pytest.raises(MessageRefused, match=r"(not bytes|not NewMessage)"):
                    await log.append_many(many)
        assert (await log.append(good)).queue_offset == 0


WRONG: list[dict[str, Any]] = [
    *(
        {"properties": one}
        for one in ({"KEYS": 5}, {5: "a"}, {"a": None}, {"TAGS": b"x"}, "a", None)
    ),
    *({"born_host": one} for one in (5, ("1.2.3.4",), ("1.2.3.4", "x"), ("host", 1), ([], 1))),
    *({"store_host": one} for one in (("1.2.3.4", 1 << 40), ("1.2.3.4", 1, 1), "1.2.3.4")),
    *({"body": one} for one in (memoryview(b"abcd")[::2], memoryview(b"abcdefgh").cast("i"))),
    *({"body": one} for one in (array("i", [1, 2]), np.zeros(4, np.int32), [1, 2])),
    *({"queue_id": one} for one in (None, "0", 1.0, True, QUEUE_ID_MAX + 1, -1)),
    *({"sys_flag": one} for one in (None, "0", 1 << 40, INNER_BATCH)),
    *({"flag": 1.5}, {"born_timestamp": "5"}, {"born_timestamp": 1 << 70}, {"topic": b"T"}),
]


@pytest.mark.parametrize(
    "wrong", WRONG, ids=lambda wrong: re.sub(" at 0x[0-9a-f]+", "", repr(wrong))
)
async def test_what_is_wrong_is_refused_alone_and_among_others(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    """Whichever way plans the call; who waits for one that is refused is told."""
    good = NewMessage("T", 0, b"body", {"a": "b"})
    bad = good._replace(**wrong)
    async with open_hot_log(tmp_path, options=OPTIONS, clock=SystemClock()) as log:
        async with asyncio.timeout(60):
            for many in ([bad], [good, bad], [*[good] * 9, bad], [bad] * 9):
                with pytest.raises(MessageRefused):
                    await log.append_many(many)
            again = [await log.append(good) for _ in range(2)]
        assert [place.queue_offset for place in again] == [0, 1]


def test_the_largest_message_of_each_limit_is_taken() -> None:
    body = bytes(OPTIONS.message_bytes_max)
    largest = NewMessage("x" * 255, QUEUE_ID_MAX, body, b"x" * 32767)
    assert prepare(largest, 1, OPTIONS).size == 92 + 255 + len(body) + 32767
    with_crc = replace(OPTIONS, record_crc=True)
    fits = b"a" * (32767 - RECORD_CRC_BYTES - 1) + b"\x02"
    assert prepare(NewMessage("T", 0, b"", fits), 1, with_crc).size == 92 + 32767
    with pytest.raises(MessageRefused, match="more than 32747"):
        prepare(NewMessage("T", 0, b"", fits + b"\x02"), 1, with_crc)


def test_a_record_that_no_file_holds_is_refused() -> None:
    small = replace(OPTIONS, commit_log_bytes=1000)
    overhead = prepare(NewMessage("T", 0, b""), 1, small).size
    assert prepare(NewMessage("T", 0, bytes(992 - overhead)), 1, small).size == 992
    with pytest.raises(MessageRefused, match="mappedFileSizeCommitLog"):
        prepare(NewMessage("T", 0, bytes(993 - overhead)), 1, small)
