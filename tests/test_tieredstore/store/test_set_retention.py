"""`reserve.time` of a topic: set by an operator, a call or a command, and never overwritten."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tieredstore
from container.metadata.records import Topic
from provider.errors import NotFound
from tests.support.hot_store import SMALL, appender_at, new_message, put
from tieredstore import LocalMessageStore, NewMessage
from tieredstore.cli.main import cli
from tieredstore.hot.log.topics import ConfirmedTime
from tieredstore.session.tiering import kept_hours, topic_values
from tieredstore.store.plugins import PluggedStore
from tieredstore.store.tiered import TieredMessageStore

SETTINGS: dict[str, object] = {
    "tieredStoreDeleteFileEnable": True,
    "mappedFileSizeCommitLog": 4096,
    "mappedFileSizeConsumeQueue": 200,
}


def topics_file(root: Path) -> Path:
    return root / "config" / "topics.json"


def attributes(root: Path, topic: str) -> dict[str, str]:
    return json.loads(topics_file(root).read_text())["topicConfigTable"][topic]["attributes"]


def edit(root: Path, topic: str, **settings: Any) -> None:
    """What an operator's editor does to the file of a store that is open."""
    document = json.loads(topics_file(root).read_text())
    document["topicConfigTable"][topic] |= settings
    topics_file(root).write_text(json.dumps(document))


def opened(root: Path) -> TieredMessageStore | PluggedStore:
    return tieredstore.open_store(root / "hot", root / "tier", broker="b", settings=SETTINGS)


@pytest.mark.parametrize("change", ["new topic", "new queue", "deletion", "restart"])
def test_what_an_operator_sets_survives_what_the_store_writes(change: str, tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        put(store, [new_message(0, topic="Ledger"), new_message(0, topic="Other")])
        edit(tmp_path, "Ledger", attributes={"reserve.time": "8760"}, order=True)
        if change == "new topic":
            put(store, [new_message(0, topic="Another")])
        elif change == "new queue":
            put(store, [new_message(0, topic="Ledger", queue_id=9)])
        elif change == "deletion":
            store.delete_topics(["Other"])
        else:
            store.close()
    if change == "restart":
        with appender_at(tmp_path) as store:
            put(store, [new_message(0, topic="Another")])
    assert attributes(tmp_path, "Ledger") == {"reserve.time": "8760"}
    table = json.loads(topics_file(tmp_path).read_text())["topicConfigTable"]
    assert table["Ledger"]["order"] is True
    assert table["Ledger"]["writeQueueNums"] == (10 if change == "new queue" else 4)
    assert ("Other" in table) == (change != "deletion")


def test_topics_that_an_operator_left_out_are_entered_again(tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        put(store, [new_message(0, topic="Ledger"), new_message(0, topic="Other", queue_id=7)])
        topics_file(tmp_path).write_text('{"topicConfigTable": {}}')
        put(store, [new_message(0, topic="Another")])
    table = json.loads(topics_file(tmp_path).read_text())["topicConfigTable"]
    assert {topic: one["writeQueueNums"] for topic, one in table.items()} == {
        "Ledger": 4,
        "Other": 8,
        "Another": 4,
    }


@pytest.mark.parametrize("raw", [b"", b"{", b"[]"])
def test_a_file_that_is_being_edited_stops_no_put(raw: bytes, tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        put(store, [new_message(0, topic="Ledger")])
        store.set_retention("Ledger", 5)
        topics_file(tmp_path).write_bytes(raw)
        put(store, [new_message(0, topic="Another")])
    assert attributes(tmp_path, "Ledger") == {"reserve.time": "5"}
    assert attributes(tmp_path, "Another") == {}


async def test_a_call_sets_it_for_the_tier_at_once_and_takes_it_back(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put_messages([NewMessage("Ledger", 0, b"x"), NewMessage("Other", 0, b"x")])
        assert store.cold is not None
        await store.cold.tier_now()
        tier = store.cold.tier
        await store.set_retention("Ledger", 8760)
        assert tier.state.topics["Ledger"].retention_hours == 8760
        assert (await topic_values(tmp_path / "hot")).hours["Ledger"] == 8760
        await store.put_message(NewMessage("Another", 0, b"x"))
        assert attributes(tmp_path / "hot", "Ledger") == {"reserve.time": "8760"}
        await store.set_retention("Ledger", None)
        assert tier.state.topics["Ledger"].retention_hours == -1
        assert tier.state.topics["Other"].retention_hours == -1
        assert attributes(tmp_path / "hot", "Ledger") == {}


@pytest.mark.parametrize("hours", [0, -1, 10**9, True, 1.5, "8"])
async def test_hours_that_mean_nothing_are_refused(hours: Any, tmp_path: Path) -> None:
    async with LocalMessageStore(tmp_path, options=SMALL) as store:
        await store.put_message(NewMessage("Ledger", 0, b"x"))
        with pytest.raises(ValueError, match="hours is"):
            await store.set_retention("Ledger", hours)
        with pytest.raises(NotFound, match="no such topic"):
            await store.set_retention("Nowhere", 1)


def test_a_command_sets_it(tmp_path: Path) -> None:
    def command(*words: str, status: int = 0) -> Result:
        given = ("-D", f"storePathRootDir={tmp_path}", "-D", "mappedFileSizeCommitLog=4096")
        result = CliRunner().invoke(cli, [*given, *words])
        assert result.exit_code == status, result.output
        return result

    command("put", "Ledger", "x")
    assert command("set-retention", "Ledger", "72").stdout == "Ledger is kept for 72 hours\n"
    command("put", "Another", "x")
    assert attributes(tmp_path, "Ledger") == {"reserve.time": "72"}
    assert "its default time" in command("set-retention", "Ledger", "--default").stdout
    assert attributes(tmp_path, "Ledger") == {}
    assert "give HOURS, or --default" in command("set-retention", "Ledger", status=2).stderr
    assert "no such topic" in command("set-retention", "Nowhere", "1", status=1).stderr


KNOWN = Topic("Ledger", 1, retention_hours=8760, updated_ms=100)
NEW = Topic("Ledger", 1)


@pytest.mark.parametrize(
    ("hours", "confirmed", "tiered", "kept"),
    [
        (8760, None, KNOWN, 8760),
        (9999, None, KNOWN, 9999),
        (760, None, KNOWN, 8760),
        (-1, None, KNOWN, 8760),
        (760, (760, 100), KNOWN, 760),
        (-1, (-1, 101), KNOWN, -1),
        (760, (760, 99), KNOWN, 8760),  # it was lengthened since
        (760, (1760, 101), KNOWN, 8760),
        (760, (1760, 101), NEW, 1760),
        (24, None, NEW, 24),
        (24, None, None, 24),
        (24, (-1, 0), NEW, 24),
        (-1, (9999, 101), NEW, 9999),
    ],
)
def test_a_shorter_time_counts_once_it_is_confirmed(
    hours: int, confirmed: tuple[int, int] | None, tiered: Topic | None, kept: int
) -> None:
    time = None if confirmed is None else ConfirmedTime(*confirmed)
    assert kept_hours(hours, time, tiered, default=72) == kept


async def test_a_wrong_digit_deletes_nothing_until_it_is_confirmed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def hours_of(store: TieredMessageStore | PluggedStore) -> tuple[int, int]:
        assert store.cold is not None
        await store.cold.tier_now()
        tier = store.cold.tier
        await tier.set_topics(*await store.cold.topic_values.read())
        return tier.upkeep.topic_hours["Ledger"], tier.state.topics["Ledger"].retention_hours

    def rot(right: bytes, wrong: bytes) -> None:
        raw = topics_file(tmp_path / "hot").read_bytes()
        assert right in raw
        topics_file(tmp_path / "hot").write_bytes(raw.replace(right, wrong))

    async with opened(tmp_path) as store:
        await store.put_message(NewMessage("Ledger", 0, b"x"))
        await store.set_retention("Ledger", 8760)
        assert await hours_of(store) == (8760, 8760)
    rot(b'"8760"', b'"0760"')
    for turn in range(2):
        async with opened(tmp_path) as store:
            assert await hours_of(store) == (8760, 8760)
            await store.put_message(NewMessage(f"Another{turn}", 0, b"x"))  # the file is written
            await store.set_retention(f"Another{turn}", 5)
            assert await hours_of(store) == (8760, 8760)
    assert "has reserve.time 760 for the topic Ledger" in caplog.text
    assert "kept for 8760 hours until `tieredstore set-retention` sets it" in caplog.text
    assert attributes(tmp_path / "hot", "Ledger") == {"reserve.time": "0760"}
    sizes = [f"{key}={value}" for key, value in SETTINGS.items() if "Size" in key]
    settings = (f"storePathRootDir={tmp_path / 'hot'}", *sizes)
    given = [word for setting in settings for word in ("-D", setting)]
    done = await asyncio.to_thread(
        CliRunner().invoke, cli, [*given, "set-retention", "Ledger", "760"]
    )
    assert done.exit_code == 0, done.output
    async with opened(tmp_path) as store:
        assert await hours_of(store) == (760, 760)


async def test_a_file_that_is_lost_or_cannot_be_read_changes_no_time(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await store.put_message(NewMessage("Ledger", 0, b"x"))
        assert store.cold is not None
        await store.cold.tier_now()
        await store.set_retention("Ledger", 24)
        await store.set_retention("Ledger", 8760)  # the backup has 24, which was confirmed
        for harm in (lambda path: path.write_bytes(b"{"), lambda path: path.unlink()):
            harm(topics_file(tmp_path / "hot"))
            assert await store.cold.topic_values.read() == ({}, {})
    async with opened(tmp_path) as store:
        assert store.cold is not None
        await store.put_message(NewMessage("Another", 0, b"x"))
        assert (await store.cold.topic_values.read()).hours["Ledger"] == 8760
