"""`delete-topic`: from a store with its tier, or a tier alone; what it says and what it refuses."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from provider.clock import SystemClock
from tests.support.cli import invoke
from tests.support.fake_broker import FakeBroker
from tieredstore.cli.main import cli
from tieredstore.config.effective import Config
from tieredstore.hot.log.directory import StoreDirectory
from tieredstore.session.owner import running_owner

FILES = {"mappedFileSizeCommitLog": 65536, "mappedFileSizeConsumeQueue": 2000}


def command(*words: str, status: int = 0, **settings: object) -> Result:
    given = [part for key, value in settings.items() for part in ("-D", f"{key}={value}")]
    result = CliRunner().invoke(cli, [*given, *words])
    assert result.exit_code == status, (result.stdout, result.stderr)
    return result


def rows(result: Result) -> list[tuple[str, int, int, int]]:
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return [
        (one["topic"], one["store_queues"], one["tier_queues"], one["tier_messages"])
        for one in found
    ]


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Any]:
    """A store of our own, and its tier, with three topics."""
    places: dict[str, Any] = {
        "brokerName": "b",
        "storePathRootDir": tmp_path / "store",
        "tieredStoreFilePath": tmp_path / "tier",
        **FILES,
    }
    for topic in ("Gone", "Kept", "Other"):
        for queue in ("0", "3"):
            command("put", topic, "one", "two", "--queue", queue, **places)
    command("tier", str(tmp_path / "store"), **places)
    return places


def topics_of(tier: object) -> set[str]:
    listed = invoke(Path(str(tier)), "topics", "--json").stdout
    return {json.loads(line)["topic"] for line in listed.splitlines()}


def test_topics_go_from_the_store_and_from_its_tier(places: dict[str, Any]) -> None:
    words = ("delete-topic", "Other", "Gone", "--json")
    expected = [("Gone", 2, 2, 4), ("Other", 2, 2, 4)]
    assert rows(command(*words, "--dry-run", **places)) == expected
    tier, store = places["tieredStoreFilePath"], Path(str(places["storePathRootDir"]))
    assert topics_of(tier) == {"Gone", "Kept", "Other"}
    assert rows(command(*words, **places)) == expected
    assert topics_of(tier) == {"Kept"}
    assert [path.name for path in (store / "consumequeue").iterdir()] == ["Kept"]
    assert not (store / "abort").exists()
    invoke(Path(str(tier)), "check")
    again = command("delete-topic", "Gone", status=1, **places)
    assert "there is no topic Gone" in again.stderr
    assert command("put", "Gone", "three", **places).stdout == "Gone\t0\t2\n"
    command("tier", str(store), **places)
    assert topics_of(tier) == {"Gone", "Kept"}


def test_a_tier_alone_is_enough_and_a_brokers_store_is_left_alone(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    for topic in ("Gone", "Kept"):
        broker.put_many(topic, 0, [b"body"] * 10)
    tier = tmp_path / "tier"
    named = {"brokerName": "b", "tieredStoreFilePath": tier}
    command("tier", str(broker.directory), **named)
    shown = command("delete-topic", "Gone", tieredStoreFilePath=tier).stdout
    line = next(line for line in shown.splitlines() if "Gone" in line)
    assert line.split()[:4] == ["Gone", "0", "1", "10"]
    assert topics_of(tier) == {"Kept"}
    invoke(tier, "check")
    before = sorted(broker.directory.rglob("*"))
    words = ("delete-topic", "Kept", "--tier-only")
    command(*words, storePathRootDir=broker.directory, **named)
    assert topics_of(tier) == set()
    assert sorted(broker.directory.rglob("*")) == before


@pytest.mark.parametrize("plug_ins", ["", "tieredstore.TieredMessageStore"])
def test_without_a_tier_none_is_begun(plug_ins: str, tmp_path: Path) -> None:
    places: dict[str, Any] = {
        "brokerName": "b",
        "storePathRootDir": tmp_path / "store",
        "tieredStoreFilePath": tmp_path / "tier",
        "messageStorePlugIn": plug_ins,
        **FILES,
    }
    command("put", "Gone", "one", **places)
    assert rows(command("delete-topic", "Gone", "--json", **places)) == [("Gone", 1, 0, 0)]
    assert not (tmp_path / "tier").exists()


def test_without_a_tier_in_an_object_store_none_is_begun(tmp_path: Path) -> None:
    where = f"memory://bucket/{tmp_path.name}"
    places: dict[str, Any] = {
        "brokerClusterName": "C",
        "brokerName": "b",
        "storePathRootDir": tmp_path / "store",
        "tieredStoreFilePath": where,
        **FILES,
    }
    command("put", "Gone", "one", **places)
    assert rows(command("delete-topic", "Gone", "--json", **places)) == [("Gone", 1, 0, 0)]
    assert "no journal" in command("topics", status=1, **places).stderr


def test_what_cannot_be_deleted_is_said_and_nothing_is(
    places: dict[str, Any], tmp_path: Path
) -> None:
    tier = places["tieredStoreFilePath"]
    words = ("delete-topic", "Gone")
    for more, settings, sentence in (
        (["rmq_sys_x"], places, "rmq_sys_x is a system topic, which is not deleted"),
        (["b"], places, "b is a system topic"),
        ([], {}, "nothing is named to delete from"),
        ([], {**places, "storePathRootDir": tmp_path / "nowhere"}, "there is no store in"),
    ):
        refused = command(*words, *more, status=2, **settings)
        assert sentence in refused.stderr
    directory = StoreDirectory(tmp_path / "store")
    try:
        assert "stop it first" in command(*words, status=4, **places).stderr
    finally:
        directory.close()
    assert not (tmp_path / "nowhere").exists()
    assert topics_of(tier) == {"Gone", "Kept", "Other"}


def test_a_deletion_that_was_interrupted_is_completed_with_the_store_too(
    places: dict[str, Any],
) -> None:
    tier = Path(str(places["tieredStoreFilePath"]))
    logs = [*tier.glob("*/b/Gone/*/COMMIT_LOG/*")]
    config = Config.load(settings=places, environment={})

    async def die_after_its_entry() -> None:
        async with running_owner(config, clock=SystemClock(), has_upkeep=False) as owner:
            await owner.delete_topic("Gone")

    alone = {name: value for name, value in places.items() if name != "tieredStoreFilePath"}
    command("delete-topic", "Gone", **alone)
    asyncio.run(die_after_its_entry())
    assert len(logs) == 2
    assert all(log.exists() for log in logs)
    again = command("delete-topic", "Gone", **places)
    assert "what an interrupted deletion had left is deleted" in again.stderr
    assert not any(log.exists() for log in logs)
    assert "there is no topic Gone" in command("delete-topic", "Gone", status=1, **places).stderr
