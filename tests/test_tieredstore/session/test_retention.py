"""Retention as it is configured: off by default, on by one word, with the times of topics."""

import json
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.support.fake_broker import FakeBroker
from tests.support.patience import Patience, until
from tieredstore.config.effective import Config
from tieredstore.follower import Follower
from tieredstore.session.tiering import hours_of

QUICK = {"tieredStoreDeleteFileInterval": 100, "tieredStoreJournalGraceTime": 0}


def old_store(directory: Path) -> FakeBroker:
    """Two topics with messages of years ago; one is kept for a century."""
    broker = FakeBroker(directory)
    broker.create_topic("Old")
    broker.create_topic("Kept", {"reserve.time": "1000000"})
    for topic in ("Old", "Kept"):
        broker.put_many(topic, 0, [b"years ago"] * 20)
    return broker


def follow(broker: FakeBroker, tier: Path, **settings: object) -> Follower:
    given = {**QUICK, **settings}
    return tieredstore.follow(broker.directory, tier, cluster="C", broker="b", settings=given)


@pytest.mark.parametrize(
    "settings",
    [{}, {"tieredStoreFileReservedTime": 1}, {"tieredStoreTopicReservedSize": 1}],
    ids=["default", "a time alone", "a size alone"],
)
def test_nothing_expires_without_the_one_word(settings: dict[str, Any]) -> None:
    config = Config.load(settings=settings, environment={})
    assert not config.upkeep.expires
    assert Config.load(
        settings={**settings, "tieredStoreDeleteFileEnable": True}, environment={}
    ).upkeep.expires


async def test_old_messages_go_but_those_of_a_topic_that_keeps_them(tmp_path: Path) -> None:
    broker = old_store(tmp_path / "store")
    root = tmp_path / "tier"
    async with follow(broker, root) as follower:
        await follower.drain()
    async with tieredstore.open(root) as opened:
        assert {one.topic: one.messages for one in opened.queues()} == {"Kept": 20, "Old": 20}
    async with follow(broker, root, tieredStoreDeleteFileEnable=True) as follower:

        def expired() -> int:
            return follower.upkeep_statistics().figures["expired_messages"]

        await until(lambda: expired() == 20, Patience("nothing expires"))
        await follower.drain()
    async with tieredstore.open(root) as opened:
        assert {one.topic: one.messages for one in opened.queues()} == {"Kept": 20, "Old": 0}
        result = await opened.get_message("g", "Old", 0, 3)
        assert result.status.name == "OFFSET_TOO_SMALL"
        assert result.next_offset == 20
        assert [finding async for finding in opened.check()] == []


@pytest.mark.parametrize(
    ("attributes", "hours"),
    [
        ({"reserve.time": "48"}, 48),
        ({"reserve.time": 48}, 48),
        ({"reserve.time": "-1"}, -1),
        ({"reserve.time": "0"}, -1),
        ({"reserve.time": "soon"}, -1),
        ({"reserve.time": "9" * 30}, -1),
        ({}, -1),
        (None, -1),
    ],
)
def test_what_a_topics_attributes_say(attributes: object, hours: int) -> None:
    assert hours_of({"T": {"attributes": attributes}, "U": {}}) == {"T": hours, "U": -1}


async def test_a_store_of_our_own_knows_what_its_topics_keep_before_anything_expires(
    tmp_path: Path,
) -> None:
    settings = {**QUICK, "tieredStoreDeleteFileEnable": True}
    store = tieredstore.open_store(tmp_path / "store", tmp_path / "tier", broker="b", settings={})
    async with store:
        await store.put_message(tieredstore.NewMessage("Kept", 0, b"x"))
    topics = tmp_path / "store" / "config" / "topics.json"
    table = json.loads(topics.read_text())
    table["topicConfigTable"]["Kept"]["attributes"] = {"reserve.time": "48"}
    topics.write_text(json.dumps(table))
    again = tieredstore.open_store(
        tmp_path / "store", tmp_path / "tier", broker="b", settings=settings
    )
    async with again:
        assert again.cold is not None
        assert again.cold.tier.upkeep.topic_hours["Kept"] == 48
