"""Arguments of a store's calls mean what they say, or are refused with a sentence."""

import datetime
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from container.queue.positions import Boundary, TimeRules
from container.record.message import moment_of
from provider.clock import SystemClock
from tests.support.hot_store import new_message
from tests.support.tiered_world import FrozenClock, TieredWorld
from tieredstore import LocalMessageStore, MessageRefused, NewMessage
from tieredstore.store.tiered import TieredMessageStore

NAIVE = datetime.datetime(2026, 1, 2)  # noqa: DTZ001 - it is refused
SYNC = ["hot log", "NOT_IN_DISK", "FORCE"]


@pytest.fixture(params=SYNC)
async def store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[LocalMessageStore | TieredMessageStore]:
    if request.param == "hot log":
        async with LocalMessageStore(tmp_path, clock=SystemClock()) as local:
            await local.put_messages([new_message(number) for number in range(5)])
            yield local
        return
    world = TieredWorld(tmp_path / "store", FrozenClock())
    async with world.store(request.param) as tiered:
        await tiered.put_messages([new_message(number) for number in range(5)])
        await world.commit(tiered)
        yield tiered


@pytest.mark.parametrize("boundary", Boundary)
@pytest.mark.parametrize("rules", TimeRules)
async def test_boundaries_and_rules_may_be_texts(
    store: Any, boundary: Boundary, rules: TimeRules
) -> None:
    moment = await store.message_store_time("Orders", 0, 0) + 3_600_000
    expected = await store.offset_by_time("Orders", 0, moment, boundary, rules)
    for text in (boundary.value, boundary.name, boundary.name.title()):
        found = await store.offset_by_time("Orders", 0, moment, text, rules.name)
        assert found == expected, text
    with pytest.raises(ValueError, match="is not a valid Boundary"):
        await store.offset_by_time("Orders", 0, moment, "middle")


async def test_a_time_may_be_a_datetime(store: Any) -> None:
    stored_ms = await store.message_store_time("Orders", 0, 3)
    for late_ms in (-1, 0, 1, 3_600_000):
        moment = moment_of(stored_ms + late_ms)
        found = await store.offset_by_time("Orders", 0, moment)
        assert found == await store.offset_by_time("Orders", 0, stored_ms + late_ms)
        keyed = await store.query_message("Orders", "key-3", end_ms=moment)
        named = await store.query_message("Orders", "key-3", end_ms=stored_ms + late_ms)
        assert keyed.messages == named.messages
        assert all(one.stored_at <= moment and one.born_at for one in keyed.messages)


async def test_a_time_before_or_after_all_messages_finds_their_bounds(store: Any) -> None:
    for moment_ms in (-1, -(1 << 64), 0, 1 << 63, 1 << 64):
        is_before = moment_ms <= 0
        lower, upper = (0, 0) if is_before else (5, 4)
        assert await store.offset_by_time("Orders", 0, moment_ms, "LOWER") == lower
        assert await store.offset_by_time("Orders", 0, moment_ms, "UPPER") == upper
        found = await store.query_message("Orders", "key-3", begin_ms=moment_ms)
        assert (len(found.messages), found.is_complete) == (int(is_before), True)
        found = await store.query_message("Orders", "key-3", end_ms=moment_ms)
        assert (len(found.messages), found.is_complete) == (int(not is_before), True)


WRONG: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("offset_by_time", ("Orders", 0, NAIVE), {}, "has no time zone"),
    ("offset_by_time", ("Orders", 0, "now"), {}, "timestamp_ms is of type str, not int"),
    ("offset_by_time", ("Orders", 0, 1.5), {}, "timestamp_ms is of type float, not int"),
    ("get_message", ("g", "Orders", True, 0), {}, "queue id is of type bool, not int"),
    ("get_message", ("g", "Orders", "0", 0), {}, "queue id is of type str, not int"),
    ("get_message", ("g", b"Orders", 0, 0), {}, "topic is of type bytes, not str"),
    ("get_message", ("g", "Orders", 0, 1.5), {}, "offset is of type float, not int"),
    (
        "get_message",
        ("g", "Orders", 0, 0),
        {"messages_max": 0},
        "messages_max must be positive",
    ),
    (
        "get_message",
        ("g", "Orders", 0, 0),
        {"messages_max": -3},
        "messages_max must be positive",
    ),
    ("get_message", ("g", "Orders", 0, 0), {"messages_max": 1.5}, "messages_max is of type"),
    ("get_message", ("g", "Orders", 0, 0), {"bytes_max": -5}, "must not be negative, as -5 is"),
    (
        "get_message",
        ("g", "Orders", 0, 0),
        {"subscription": ["TagA"]},
        "subscription is of type list, not str: use 'TagA || TagB'",
    ),
    ("min_offset", ("Orders", True), {}, "queue id is of type bool"),
    ("max_offset", ("Orders", None), {}, "queue id is of type NoneType"),
    ("message_store_time", ("Orders", 0.5, 0), {}, "queue id is of type float"),
    ("query_message", ("Orders", "k"), {"begin_ms": 0.5}, "begin_ms is of type float"),
    ("query_message", ("Orders", "k"), {"messages_max": "9"}, "messages_max is of type str"),
    ("query_message", ("Orders", "k"), {"messages_max": -1}, "messages_max is negative: -1"),
    ("query_message", ("Orders", "k"), {"begin_ms": NAIVE}, "has no time zone"),
    ("query_message", ("Orders", "k"), {"end_ms": NAIVE}, "has no time zone"),
]
"""Calls with their arguments, and what is said."""


async def test_an_argument_of_another_kind_is_refused(store: Any) -> None:
    for call, arguments, named, sentence in WRONG:
        with pytest.raises(ValueError, match=sentence):
            await getattr(store, call)(*arguments, **named)


async def test_no_bytes_are_enough_for_one_message(store: Any) -> None:
    assert len((await store.get_message("g", "Orders", 0, 0, bytes_max=0)).messages) == 1


@pytest.mark.parametrize("count", [1, 9])
async def test_messages_with_a_queue_id_or_flag_that_means_nothing_are_refused(
    store: Any, count: int
) -> None:
    await store.put_message(new_message(0, queue_id=1))
    with pytest.raises(MessageRefused, match="queue id is of type bool, not int"):
        await store.put_messages([new_message(0)._replace(queue_id=True)] * count)
    with pytest.raises(MessageRefused, match="the body is a batch"):
        await store.put_messages([new_message(0)._replace(sys_flag=0x80)] * count)
    for flag in (0x4, 0xC, 0x4D, -1 & ~0x80):  # prepared, rolled back
        odd = new_message(0)._replace(sys_flag=flag)
        for messages in ([odd], [odd] * count, [*[new_message(0)] * count, odd]):
            with pytest.raises(MessageRefused, match="RocketMQ enters into no queue"):
                await store.put_messages(messages)
        with pytest.raises(MessageRefused, match="RocketMQ enters into no queue"):
            await store.put_message(odd)
    assert (await store.put_message(new_message(0, queue_id=1))).queue_offset == 1
    with pytest.raises(MessageRefused, match="queue id is of type bool, not int"):
        await store.put_message(new_message(0)._replace(queue_id=True))


KEPT: dict[str, dict[str, Any]] = {
    "compressed": {"sys_flag": 0x1, "body": zlib.compress(b"hello")},
    "typed": {"sys_flag": 0x301, "body": zlib.compress(b"hello")},
    "unknown type": {"sys_flag": 0x401},
    "several tags": {"sys_flag": 0x2, "properties": {"TAGS": "a||b"}},
    "to be unwrapped": {"sys_flag": 0x40},
    "committed": {"sys_flag": 0x8, "properties": {"KEYS": "k"}},
    "high bits": {"sys_flag": 0x7000},
    "delayed": {"properties": {"DELAY": "3", "TIMER_DELAY_SEC": "10"}},
    "not waited for": {"properties": {"WAIT": "false"}},
    "negative": {"flag": -5, "born_timestamp": -1},
    "empty value": {"properties": {"A": ""}},
    "dispatched often": {
        "properties": {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "3"}
    },
}


@pytest.mark.leaves_findings("body-compression", why="a client gave a type that there is not")
async def test_flags_and_properties_are_read_as_they_were_put(tmp_path: Path) -> None:
    world = TieredWorld(tmp_path / "store", FrozenClock())
    async with world.store() as store:
        for topic, given in KEPT.items():
            put = NewMessage(topic, 0, **{"body": b"hello", **given})
            assert (await store.put_message(put)).queue_offset == 0
        await world.commit(store)
        for level in ("DISABLE", "FORCE"):
            await store.set_level(level)
            for topic, given in KEPT.items():
                (one,) = (await store.get_message("g", topic, 0, 0)).messages
                found = {name: getattr(one, name) for name in given if name != "properties"}
                expected = {name: value for name, value in given.items() if name != "properties"}
                assert found == expected, topic
                properties = given.get("properties", {})
                kept = {name: value for name, value in properties.items() if value}
                assert one.property_map == kept, topic  # RocketMQ reads no empty value, either
