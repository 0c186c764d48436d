"""A tier that is encrypted before it is uploaded, from the command line and from programs."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner, Result

import tieredstore
from provider.errors import Corrupt, Denied
from tests.support.fake_broker import FakeBroker
from tieredstore import offline
from tieredstore.cli.main import cli
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.jobs.restore_plan import Wanted
from tieredstore.offline.jobs.restore_store import restore_store
from tieredstore.offline.scan.planning import splits
from tieredstore.reader import readable_tier
from tieredstore.session import places

KEYS = "TIEREDSTORE_OBJECT_STORE_ENCRYPTION_KEYS"
NAMED = ("-D", "brokerClusterName=C", "-D", "brokerName=broker-a")
WORD = b"a word that nobody else may read"


def master(name: str, number: int) -> str:
    return f"{name}:{base64.b64encode(bytes([number]) * 32).decode()}"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv(KEYS, master("a", 1))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield f"memory://bucket/{tmp_path.name}"
    memory.store.clear()


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path / "store")
    for _ in range(300):
        broker.put("Orders", 0, WORD * 10)
    return broker


def objects() -> dict[str, bytes]:
    """Names and bytes of everything in the storage."""
    store: dict[str, Any] = fsspec.filesystem("memory").store
    return {name: file.getvalue() for name, file in store.items()}


def invoke(*words: str | Path, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, list(map(str, words)))
    assert result.exit_code == status, result.output
    return result


def test_what_is_tiered_encrypted_is_read_with_its_key_only(
    broker: FakeBroker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = ("--tier", url, *NAMED)
    invoke(*tier, "tier", broker.directory)
    found = objects()
    assert any("/@parts/" in name for name in found)
    assert not [name for name, raw in found.items() if WORD in raw or b"Orders" in raw]
    assert "nothing is wrong" in invoke("--tier", url, "check").output
    rows = invoke("--tier", url, "read", "Orders", "0", "--max", "1000", "--json").stdout
    assert [json.loads(row)["body"].encode() for row in rows.splitlines()] == [WORD * 10] * 300

    monkeypatch.delenv(KEYS)
    for command in (("topics",), ("check",), ("read", "Orders"), ("tier", broker.directory)):
        failed = invoke(*tier, *command, status=2)
        assert "it is encrypted: give its master key a" in failed.stderr
        assert "Traceback" not in failed.stderr
    monkeypatch.setenv(KEYS, master("b", 2))
    assert "the master key a, which was not given" in invoke(*tier, "topics", status=2).stderr
    assert objects() == found


def test_jobs_read_an_encrypted_tier_by_the_key_of_their_environment_and_carry_none(
    broker: FakeBroker, url: str
) -> None:
    invoke("--tier", url, *NAMED, "tier", broker.directory)
    assert {split.place.settings for split in splits(url)} == {()}
    rows = offline.dataset(url, "Orders", columns=["body"]).read_all()
    assert rows["body"].to_pylist() == [WORD * 10] * 300
    config = Config.load(settings={"tieredStoreFilePath": url})
    report = audit(config, OneProcess(), bodies=True)
    assert (report.findings, report.counts["messages"]) == ([], 300)


@pytest.mark.leaves_findings(
    "checksum", "record", "unreadable", "journal", "body-crc", why="the test damages the tier"
)
def test_an_audit_tells_of_damaged_frames_and_goes_on(broker: FakeBroker, url: str) -> None:
    broker.put("Others", 0, b"sound")
    invoke("--tier", url, *NAMED, "tier", broker.directory)
    store: dict[str, Any] = fsspec.filesystem("memory").store
    parts = [name for name in objects() if "/@parts/" in name]
    config = Config.load(settings={"tieredStoreFilePath": url})
    for name in parts:
        sound = store[name].getvalue()
        raw = bytearray(sound)
        for place in range(len(raw) // 2, len(raw), 64):
            raw[place] ^= 1
        fsspec.filesystem("memory").pipe(name, bytes(raw))
        report = audit(config, OneProcess(), bodies=True)
        assert "unreadable" in {one.finding for one in report.findings}
        assert report.counts["queues"] == 2
        fsspec.filesystem("memory").pipe(name, sound)
    assert parts
    assert audit(config, OneProcess(), bodies=True).findings == []


@pytest.mark.leaves_findings("journal", "unreadable", why="the storage gives refused entries")
def test_a_refused_upload_of_a_journal_entry_is_not_taken_for_the_entry(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readable_tier, "SETTLE_S", 0.0)  # no owner publishes what it finds
    tier = ("--tier", url, *NAMED)
    broker, rival = FakeBroker(tmp_path / "store"), FakeBroker(tmp_path / "rival")
    for one in (broker, rival):
        one.put("Orders", 0, b"of both")
    invoke(*tier, "tier", broker.directory)
    begun = objects()
    broker.put("Orders", 0, b"accepted")
    invoke(*tier, "tier", broker.directory)
    accepted = objects()
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    for name, raw in begun.items():
        memory.pipe(name, raw)
    rival.put("Orders", 0, b"refused")
    invoke(*tier, "tier", "--new-tier", rival.directory)
    refused = objects()
    names = sorted(name for name in accepted.keys() & refused.keys() - begun.keys())
    entries = [name for name in names if "/@journal/" in name]
    assert len(entries) > 1
    for name in entries[:-1]:  # the newest one has no successor that tells of it
        for other, raw in accepted.items():
            memory.pipe(other, raw)
        memory.pipe(name, refused[name])
        failed = invoke("--tier", url, "check", status=1)
        assert "journal: @journal/" in failed.output
    memory.store.clear()
    for name, raw in accepted.items():
        memory.pipe(name, raw)


def test_rewrapping_puts_the_tier_under_the_new_key(
    broker: FakeBroker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("--tier", url, *NAMED, "tier", broker.directory)
    before = objects()
    monkeypatch.setenv(KEYS, f"{master('b', 2)},{master('a', 1)}")
    assert "would be under" in invoke("--tier", url, "rewrap-keys", "--dry-run").output
    assert objects() == before
    (row,) = map(json.loads, invoke("--tier", url, "rewrap-keys", "--json").stdout.splitlines())
    assert (row["was_under"], row["under"]) == (["a"], "b")
    changed = {name for name, raw in (objects().items() ^ before.items()) if raw}
    assert {name.split("/")[-3] for name in changed} == {"@keys"}
    monkeypatch.setenv(KEYS, master("b", 2))
    invoke("--tier", url, "check", "--bodies")
    broker.put("Orders", 0, b"later")
    invoke("--tier", url, *NAMED, "tier", broker.directory)
    assert "later" in invoke("--tier", url, "read", "Orders", "0", "--offset", "300").output


@pytest.mark.leaves_findings("journal", why="nobody tells the fixture of the second store")
@pytest.mark.parametrize("first", ["directory", "object store"])
def test_rewrapping_puts_the_second_store_under_the_new_key_too(
    broker: FakeBroker, url: str, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "tier") if first == "directory" else url
    tier = ("--tier", place, "-D", "tieredStoreOffloadPath=memory://other/place", *NAMED)
    invoke(*tier, "tier", broker.directory)
    invoke(*tier, "offload", "Orders")
    messages = ("read", "Orders", "0", "--max", "1000")
    before = invoke(*tier, *messages).stdout
    assert not [name for name, raw in objects().items() if WORD in raw]
    monkeypatch.setenv(KEYS, f"{master('b', 2)},{master('a', 1)}")
    held = objects()
    wanted = ["second"] if first == "directory" else ["first", "second"]
    for words in (("--dry-run",), ()):
        assert objects() == held
        done = invoke(*tier, "rewrap-keys", "--json", *words)
        rows = list(map(json.loads, done.stdout.splitlines()))
        assert [(row["store"], row["was_under"], row["under"]) for row in rows] == [
            (store, ["a"], "b") for store in wanted
        ]
    monkeypatch.setenv(KEYS, master("b", 2))
    invoke(*tier, "check", "--bodies")
    assert invoke(*tier, *messages).stdout == before
    monkeypatch.setenv(KEYS, master("a", 1))
    assert "the master key b, which was not given" in invoke(*tier, "check", status=2).stderr


def test_nothing_is_rewrapped_where_one_of_two_stores_cannot_be(
    broker: FakeBroker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = ("--tier", url, "-D", "tieredStoreOffloadPath=memory://other/place", *NAMED)
    invoke(*tier, "tier", broker.directory)
    invoke(*tier, "offload", "Orders")
    monkeypatch.setenv(KEYS, f"{master('b', 2)},{master('a', 1)}")
    invoke("--tier", url, "rewrap-keys")  # of the first store alone
    held = objects()
    monkeypatch.setenv(KEYS, f"{master('c', 3)},{master('b', 2)}")
    failed = invoke(*tier, "rewrap-keys", status=2)
    assert "is wrapped by a, which was not given" in failed.stderr
    assert "memory://other/place/" in failed.stderr
    assert objects() == held


def test_misuse_of_keys_is_one_sentence_without_them(
    broker: FakeBroker, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = f"{url}/plain"
    monkeypatch.delenv(KEYS)
    failed = invoke("--tier", plain, *NAMED, "rewrap-keys", status=2)
    assert f"set {KEYS}" in failed.stderr
    invoke("--tier", plain, *NAMED, "tier", broker.directory)
    monkeypatch.setenv(KEYS, master("a", 1))
    failed = invoke("--tier", plain, *NAMED, "tier", broker.directory, status=2)
    assert "not encrypted" in failed.stderr
    failed = invoke("--tier", tmp_path / "tier", *NAMED, "tier", broker.directory, status=2)
    assert "encrypt the file system there" in failed.stderr
    secret = base64.b64encode(bytes(31)).decode()
    monkeypatch.setenv(KEYS, f"a:{secret}")
    failed = invoke("--tier", url, "topics", status=2)
    assert "master key 1 is not NAME:BASE64" in failed.stderr
    assert secret not in failed.output
    monkeypatch.delenv(KEYS)
    failed = invoke(
        "--tier", url, "-D", f"objectStoreEncryptionKeys=a:{secret}", "topics", status=2
    )
    assert "is a secret, which is taken from the environment only" in failed.stderr
    assert secret not in failed.output


def test_no_setting_shows_a_master_key(url: str) -> None:
    config = Config.load(defines=[f"tieredStoreFilePath={url}"])
    secret = base64.b64encode(bytes([1]) * 32).decode()
    assert config.storage.master_keys is not None
    assert secret not in repr(config)
    shown = invoke("--tier", url, "config", "--json").output
    assert secret not in shown
    assert "objectStoreEncryptionKeys" in shown


async def test_a_store_of_our_own_tiers_encrypted(tmp_path: Path, url: str) -> None:
    settings: dict[str, Any] = {"tieredStoreGroupCommitTimeout": 100}
    named: dict[str, Any] = {"cluster": "C", "broker": "broker-a"}
    async with tieredstore.open_store(
        tmp_path / "own", url, level="FORCE", settings=settings, **named
    ) as store:
        for _ in range(10):
            await store.put_message(tieredstore.NewMessage("Orders", 0, WORD))
    assert not [name for name, raw in objects().items() if WORD in raw]
    async with tieredstore.open(url) as tier:
        assert [one.body async for one in tier.messages("Orders", 0)] == [WORD] * 10


def test_encryption_without_its_library_says_what_to_install(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "find_spec", lambda _name: None)  # type: ignore[misc]
    failed = invoke("--tier", url, *NAMED, "topics", status=2)
    assert "pip install 'tieredstore[encryption]'" in failed.stderr


async def test_an_unreadable_key_is_a_refusal_in_python_too(
    url: str, broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: dict[str, Any] = {"cluster": "C", "broker": "broker-a"}
    async with tieredstore.follow(broker.directory, url, **named) as follower:
        await follower.drain()
    monkeypatch.setenv(KEYS, master("b", 1))
    with pytest.raises(Denied, match="the master key a, which was not given"):
        async with tieredstore.open(url):
            pass
    monkeypatch.setenv(KEYS, "nonsense")
    with pytest.raises(ConfigError, match="is not NAME:BASE64"):
        async with tieredstore.open(url):
            pass


def test_a_plain_tier_with_keys_is_refused_and_not_called_damaged(
    broker: FakeBroker, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = ("--tier", url, *NAMED)
    keys = master("a", 1)
    monkeypatch.delenv(KEYS)
    invoke(*tier, "tier", broker.directory)
    before = objects()
    monkeypatch.setenv(KEYS, keys)
    others = (
        ("tier", broker.directory),
        ("rebuild", "--metadata"),
        ("repair", "--journal-to", "1"),
    )
    for command in (*READING, *others):
        if command[0] in {"metadata", "offload"}:
            continue  # refused for a tier in an object store, or without a second store
        words = [tmp_path / "out" if word == "FILE" else word for word in command]
        failed = invoke(*tier, *words, status=2)
        assert f"tieredstore: it is not encrypted: take the keys away ({url}" in failed.stderr
        assert "journal" not in failed.stderr.replace("@journal", "")
        assert "Traceback" not in failed.stderr
    assert objects() == before
    monkeypatch.delenv(KEYS)
    assert "nothing is wrong" in invoke("--tier", url, "check").output


SECOND = ("-D", "tieredStoreOffloadPath=memory://other/place")
READING = (("topics",), ("check",), ("read", "Orders"), ("audit",), ("scrub",),
           ("offload", "Orders"), ("delete-topic", "Orders", "--tier-only"),
           ("metadata", "export", "FILE"), ("export", "--topic", "Orders", "FILE"))  # fmt: skip
"""Commands that meet both stores."""


@pytest.mark.leaves_findings("journal", why="nobody tells the fixture of the second store")
@pytest.mark.parametrize("begun_with", [master("a", 1), ""])
def test_a_second_store_of_the_other_kind_is_named_on_every_path(
    broker: FakeBroker, tmp_path: Path, url: str, begun_with: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = ("--tier", tmp_path / "tier", *SECOND, *NAMED)
    monkeypatch.setenv(KEYS, begun_with)
    invoke(*tier, "tier", broker.directory)
    invoke(*tier, "offload", "Orders")
    before = objects()
    monkeypatch.setenv(KEYS, "" if begun_with else master("a", 1))
    reason = (
        "it is encrypted: give its master key a"
        if begun_with
        else "it is not encrypted: take the keys away"
    )
    for command in (*READING, ("tier", broker.directory)):
        words = [tmp_path / "out" if word == "FILE" else word for word in command]
        failed = invoke(*tier, *words, status=2)
        assert f"tieredstore: {reason} (memory://other/place/" in failed.stderr
        assert "Traceback" not in failed.stderr
    assert objects() == before


def test_lost_data_keys_are_named_and_nothing_is_advised_that_destroys(
    broker: FakeBroker, url: str
) -> None:
    tier = ("--tier", url, *NAMED)
    invoke(*tier, "tier", broker.directory)
    store: dict[str, Any] = fsspec.filesystem("memory").store
    kept = {name: store.pop(name) for name in list(store) if "/@keys/" in name}
    assert kept
    for command in (("topics",), ("check",), ("tier", broker.directory)):
        failed = invoke(*tier, *command, status=2)
        assert "its data keys are gone: restore them from a copy" in failed.stderr
        assert "repair" not in failed.stderr
    store.update(kept)
    assert "nothing is wrong" in invoke("--tier", url, "check").output


def test_a_store_directory_is_restored_with_the_key_only(
    broker: FakeBroker, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    invoke("--tier", url, *NAMED, "tier", broker.directory)

    def restored(name: str) -> int:
        names = {"brokerClusterName": "C", "brokerName": "broker-a"}
        config = Config.load(settings={"tieredStoreFilePath": url, **names})
        root = tmp_path / name
        return restore_store(config, OneProcess(), root, wanted=Wanted(), offsets={}).messages

    assert restored("whole") == 300
    monkeypatch.setenv(KEYS, master("a", 2))
    with pytest.raises(Corrupt, match="another key"):
        restored("without")
