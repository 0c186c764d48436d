"""An encrypted tier that an older program wrote is read, continued, and bound by `rewrap-keys`."""

import asyncio
import base64
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner, Result

from provider.clock import SystemClock
from provider.object.store import open_object_store
from tests.support.fake_broker import FakeBroker
from tests.support.golden import GOLDEN
from tests.support.seaweedfs import SeaweedFs
from tieredstore.admin.rewrap import open_owner
from tieredstore.cli.main import cli
from tieredstore.config.effective import Config

KEYS = "TIEREDSTORE_OBJECT_STORE_ENCRYPTION_KEYS"
MASTER = f"golden:{base64.b64encode(b'golden' + bytes(26)).decode()}"
OTHER = f"other:{base64.b64encode(bytes(32)).decode()}"
FIRST, SECOND = "memory://first/place", "memory://second/place"
TIER = ("--tier", FIRST, "-D", f"tieredStoreOffloadPath={SECOND}")
TOPICS = {"Kept": 120, "Moved": 120}
pytestmark = pytest.mark.leaves_findings(
    "journal", why="nobody tells the fixture of the second store"
)


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The objects of `memory://`, as the older program left them."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(KEYS, MASTER)
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    with tarfile.open(GOLDEN / "encrypted-0.1.0-d710648" / "tier.tar.xz") as archive:
        for entry in archive:
            file = archive.extractfile(entry)
            assert file is not None
            memory.pipe(f"/{entry.name}", file.read())
    yield memory.store
    memory.store.clear()


async def test_on_s3_it_is_bound_too(
    seaweed: SeaweedFs, store: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    places = {}
    for which in ("first", "second"):
        places[which] = f"s3://{seaweed.make_bucket(f'bound-{which}')}/place"
        objects = open_object_store(places[which], storage=seaweed.storage)
        for name, raw in raw_objects(store).items():
            if name.startswith(f"/{which}/place/"):
                await objects.create(name.removeprefix(f"/{which}/place/"), [raw])
        await objects.close()
    where = ("--tier", places["first"], "-D", f"tieredStoreOffloadPath={places['second']}")
    outputs: list[str] = []
    for words in (("check", "--bodies"), ("rewrap-keys",), ("check", "--bodies")):
        done = await asyncio.to_thread(CliRunner().invoke, cli, [*where, *words])
        assert done.exit_code == 0, done.output
        outputs.append(done.output)
    assert ["rewrap-keys` binds" in output for output in outputs] == [True, False, False]
    assert "of the older form were bound to the tier" in outputs[1]


def invoke(*words: str | Path, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, [*TIER, *map(str, words)])
    assert result.exit_code == status, result.output
    return result


def assert_read(counts: dict[str, int], *settings: str) -> None:
    for topic, count in counts.items():
        found = invoke(*settings, "read", topic, "0", "--max", "1000", "--json").stdout
        bodies = [json.loads(row)["body"] for row in found.splitlines()]
        assert bodies == [f"{topic} {number}" * 40 for number in range(count)]


def raw_objects(store: dict[str, Any]) -> dict[str, bytes]:
    return {name: file.getvalue() for name, file in store.items()}


def test_it_is_read_checked_and_continued_and_new_objects_are_bound(
    tmp_path: Path, store: dict[str, Any]
) -> None:
    before = raw_objects(store)
    assert_read(TOPICS)
    checked = invoke("check", "--bodies").output
    assert "the first and the second store may have encrypted objects of an older" in checked
    assert raw_objects(store) == before
    broker = FakeBroker(tmp_path / "store")
    for first in range(0, 160, 40):  # what was tiered, and more
        for topic in TOPICS:
            for number in range(first, first + 40):
                broker.put(topic, 0, b"%s %d" % (topic.encode(), number) * 40)
    invoke("-D", "brokerClusterName=C", "-D", "brokerName=b", "tier", broker.directory)
    assert_read(dict.fromkeys(TOPICS, 160))
    invoke("check", "--bodies")
    after = raw_objects(store)
    wraps = [json.loads(raw) for name, raw in after.items() if "/golden" in name]
    assert sorted(one["format"] for one in wraps) == [1, 1, 2, 2]


def test_it_is_bound_by_rewrapping_and_what_it_was_is_refused(
    tmp_path: Path, store: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = ("-D", f"readAheadDiskCachePath={tmp_path / 'cache'}")
    assert_read(TOPICS, *cached)
    before = raw_objects(store)
    monkeypatch.setenv(KEYS, f"{OTHER},{MASTER}")
    planned = invoke("rewrap-keys", "--dry-run").output
    assert "of the older form would be bound to the tier" in planned
    assert raw_objects(store) == before
    rows = list(map(json.loads, invoke("rewrap-keys", "--json").stdout.splitlines()))
    bound = {row["store"]: row for row in rows if "objects_bound" in row}
    assert bound["first"]["objects_bound"] > 10
    assert bound["second"]["objects_bound"] == 10
    assert not any(row["objects_left"] or row["failures"] for row in bound.values())
    monkeypatch.setenv(KEYS, OTHER)
    assert_read(TOPICS, *cached)
    assert_read(TOPICS)
    assert "bound" not in invoke("check", "--bodies").output
    assert "bound" not in invoke("rewrap-keys").output
    now = raw_objects(store)
    wraps = [raw for name, raw in now.items() if "/@keys/" in name and "/tier" not in name]
    assert {json.loads(raw)["format"] for raw in wraps} == {2}
    replayed = 0
    monkeypatch.setenv(KEYS, f"{OTHER},{MASTER}")
    for name, raw in before.items():  # the storage puts older objects back, and their data keys
        if "/@keys/" in name or "COMMIT_LOG" in name:
            fsspec.filesystem("memory").pipe(name, raw)
            replayed += "COMMIT_LOG" in name
    failed = invoke("check", status=1).output
    assert failed.count("in the older form, which this tier has left") >= replayed > 0


async def test_no_object_is_bound_while_an_owner_lives(store: dict[str, Any]) -> None:
    config = Config.load(
        settings={"tieredStoreFilePath": FIRST, "brokerClusterName": "C", "brokerName": "b"},
        defines=[f"tieredStoreOffloadPath={SECOND}"],
    )
    async with open_owner(config, clock=SystemClock()):
        before = raw_objects(store)
        failed = await asyncio.to_thread(invoke, "rewrap-keys", status=4)
        assert "owns the tier and lives" in failed.stderr
        kept = {name for name in before if "@owner" not in name}
        now = raw_objects(store)
        assert {name: now[name] for name in kept} == {name: before[name] for name in kept}
