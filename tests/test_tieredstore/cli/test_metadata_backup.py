"""The documented backup of the metadata restores every tier, and drops nothing in silence."""

import json
import os
import shutil
from pathlib import Path
from stat import S_IMODE
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner

from tests.support.cli import Done
from tests.support.fake_broker import FakeBroker
from tieredstore.cli.main import cli

SEGMENTS = ("tieredStoreCommitLogMaxSize=4000", "tieredStoreConsumeQueueMaxSize=1000")


class Tier:
    """Two queues, one run of `tier`; nothing is exported yet."""

    def __init__(self, root: Path, *settings: str) -> None:
        self.root = root / "tier"
        self.settings = settings
        self.backup = root / "backup.json"
        self.broker = FakeBroker(root / "store", commit_log_bytes=1 << 14, consume_queue_bytes=2000)
        self.put(("A", "B"), 30)
        self.tier()

    def put(self, topics: tuple[str, ...], count: int) -> None:
        for _ in range(count):
            for topic in topics:
                self.broker.put(topic, 0, b"x" * 100)

    def run(self, *words: str | Path, status: int = 0) -> Done:
        given = ("brokerClusterName=c", "brokerName=b", f"tieredStoreFilePath={self.root}")
        options = [word for setting in (*given, *self.settings) for word in ("-D", setting)]
        result = CliRunner().invoke(cli, [*options, *map(str, words)])
        assert result.exit_code == status, result.output
        return Done(result.exit_code, result.stdout, result.stderr)

    def tier(self) -> Done:
        return self.run("tier", self.broker.directory)

    def lose(self) -> None:
        """Messages go before they are tiered: inside B, and at the end of A."""
        self.put(("A",), 10)
        self.put(("B",), 150)
        while self.broker.min_position < self.broker.position - (1 << 14):
            self.broker.delete_oldest_file()
        self.run("tier", self.broker.directory, status=1)

    def export(self) -> None:
        self.run("metadata", "export", "--overwrite", self.backup)

    @property
    def directory(self) -> Path:
        (found,) = self.root.glob("*/b")
        return found

    def lose_metadata(self) -> None:
        for ours in self.directory.glob("@*"):
            shutil.rmtree(ours) if ours.is_dir() else ours.unlink()

    def newest(self, queue: str, kind: str) -> Path:
        files = (self.directory / queue / kind).iterdir()
        return max(files, key=lambda path: path.name[-20:])

    def topics(self) -> list[dict[str, Any]]:
        return self.run("topics", "--json").rows

    def bodies(self, topic: str) -> list[int]:
        found = self.run("read", topic, "0", "--json", "--max", "1000").rows
        return [row["queue_offset"] for row in found]

    def assert_goes_on(self, before: list[dict[str, Any]]) -> None:
        """All is as before, nothing is wrong, and the next messages follow."""
        assert self.topics() == before
        assert self.run("check", "--json").rows == []
        ends = {row["topic"]: row["commit_offset"] for row in before}
        self.put(tuple(ends), 1)
        self.tier()
        assert {row["topic"]: row["commit_offset"] for row in self.topics()} == {
            topic: end + 1 for topic, end in ends.items()
        }
        assert [row["gaps"] for row in self.topics()] == [row["gaps"] for row in before]
        assert self.run("check", "--json").rows == []


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(tmp_path)


@pytest.mark.parametrize("settings", [(), SEGMENTS], ids=["one file", "many files"])
@pytest.mark.parametrize("way", ["import", "rebuild"])
def test_m1_gaps_inside_and_at_the_end_of_a_queue_are_restored(
    tmp_path: Path, settings: tuple[str, ...], way: str
) -> None:
    tier = Tier(tmp_path, *settings)
    tier.lose()
    before, read = tier.topics(), [tier.bodies("A"), tier.bodies("B")]
    assert [len(row["gaps"]) for row in before] == [1, 1]
    assert before[0]["gaps"][0]["end"] == before[0]["commit_offset"]
    assert before[1]["gaps"][0]["end"] < before[1]["commit_offset"]
    tier.export()
    tier.lose_metadata()
    if way == "import":
        tier.run("metadata", "import", tier.backup)
    else:
        tier.run("rebuild", "--metadata", "--backup", tier.backup)
    assert [tier.bodies("A"), tier.bodies("B")] == read
    tier.assert_goes_on(before)


def test_m1_an_import_restores_a_gap_of_damaged_bytes_amid_a_file(tier: Tier) -> None:
    log = tier.newest("A/0", "COMMIT_LOG")
    raw = bytearray(log.read_bytes())
    size = int.from_bytes(raw[:4], "big")
    raw[3 * size : 5 * size] = bytes(2 * size)
    log.write_bytes(raw)
    tier.lose_metadata()
    tier.run("rebuild", "--metadata", status=1)
    before = tier.topics()
    assert [(gap["start"], gap["end"]) for gap in before[0]["gaps"]] == [(3, 5)]
    segments = tier.run("segments", "A", "0", "--json").rows
    tier.export()
    tier.lose_metadata()
    tier.run("metadata", "import", tier.backup)
    assert tier.run("segments", "A", "0", "--json").rows == segments
    assert tier.bodies("A") == [*range(3), *range(5, 30)]
    tier.assert_goes_on(before)


def test_m1_a_file_without_gaps_is_as_rocketmq_writes_it_and_strange_gaps_are_refused(
    tier: Tier,
) -> None:
    tier.export()
    whole = json.loads(tier.backup.read_bytes())
    assert not [name for name in whole if name.startswith("tieredstore")]
    tier.lose_metadata()
    for start, end in ((5, 5), (7, 6), (-1, 3), (5, 41)):
        gaps = {"5": {"start": start, "end": end, "reason": "", "foundTimestamp": 0}}
        offsets = {"b/A/0": {"minOffset": 0, "nextOffset": 40, "gaps": gaps}}
        tier.backup.write_text(json.dumps({**whole, "tieredstoreOffsetTable": offsets}))
        said = tier.run("metadata", "import", tier.backup, status=2).err
        assert f"impossible gap [{start}, {end})" in said


@pytest.mark.parametrize("kind", ["COMMIT_LOG", "CONSUME_QUEUE"])
@pytest.mark.parametrize("tenths", [0, 6])
def test_m2_a_shortened_newest_file_is_named_and_nothing_is_dropped_without_a_word(
    tier: Tier, kind: str, tenths: int
) -> None:
    tier.export()
    newest = tier.newest("A/0", kind)
    size = newest.stat().st_size
    left = size * tenths // 10
    os.truncate(newest, left)
    tier.lose_metadata()
    refused = tier.run("metadata", "import", tier.backup, status=1)
    assert f"A/0 cannot be imported: the file has {left:,} bytes" in refused.err
    assert f"{size - left:,} bytes are lost (A/0/{kind}/{newest.name}" in refused.err
    assert "`tieredstore rebuild --metadata --backup FILE`" in refused.err
    assert "move" not in refused.err
    assert not list(tier.directory.glob("@journal/*"))
    partly = ("metadata", "import", tier.backup, "--partly", "A/0", "--json")
    if not left:
        assert "A/0 cannot be imported" in tier.run(*partly, status=1).err
        return
    assert [row["messages"] for row in tier.run(*partly).rows] == [18, 30]
    assert tier.bodies("A") == list(range(18))
    tier.tier()  # the broker has them still
    assert tier.bodies("A") == list(range(30))
    assert tier.run("check", "--json").rows == []


@pytest.mark.parametrize("settings", [(), SEGMENTS], ids=["one file", "many files"])
@pytest.mark.parametrize(("queue", "end"), [("A", 40), ("B", 180)])
def test_m2_a_rebuild_names_the_messages_of_the_backup_that_it_lacks(
    tmp_path: Path, settings: tuple[str, ...], queue: str, end: int
) -> None:
    """Also those before a gap at the end of a queue, and a queue without any file."""
    tier = Tier(tmp_path, *settings)
    tier.lose()
    tier.export()
    newest = tier.newest(f"{queue}/0", "COMMIT_LOG")
    os.truncate(newest, newest.stat().st_size * 6 // 10)
    tier.lose_metadata()
    said = tier.run("rebuild", "--metadata", "--backup", tier.backup, "--json", status=1).rows
    found = [row for row in said if row.get("finding") == "backup-ahead"]
    at = next(row["commit_offset"] for row in tier.topics() if row["topic"] == queue)
    assert [(row["path"], row["position"]) for row in found] == [(f"{queue}/0", at)]
    assert f"the backup ends at offset {end}" in found[0]["detail"]
    assert at < end
    shutil.rmtree(tier.directory / queue)
    tier.lose_metadata()
    said = tier.run("rebuild", "--metadata", "--backup", tier.backup, status=1).out
    wanted = f"the backup ends at offset {end}, and nothing from 0 on was found"
    assert wanted in " ".join(said.split())  # a table folds it


def test_m2_units_behind_the_end_of_the_log_are_not_passed_over(tier: Tier) -> None:
    tier.export()
    tier.put(("A",), 10)
    tier.tier()
    tier.lose_metadata()
    newest = tier.newest("A/0", "COMMIT_LOG")
    os.truncate(newest, newest.stat().st_size - 1)  # longer than the export says
    said = tier.run("metadata", "import", tier.backup, status=1).err
    assert "A/0 cannot be imported: units that point at records past the end of the log" in said


def test_m2_files_that_are_newer_than_the_backup_are_not_passed_over(tmp_path: Path) -> None:
    tier = Tier(tmp_path, *SEGMENTS)
    tier.export()
    tier.put(("A", "C"), 25)
    tier.tier()
    before = tier.topics()
    tier.lose_metadata()
    said = tier.run("metadata", "import", tier.backup, status=1).err
    assert "A/0 cannot be imported: the metadata are older than this file" in said
    assert "C/0 cannot be imported: the metadata do not know this queue" in said
    assert "B/0" not in said
    tier.run("rebuild", "--metadata")
    tier.assert_goes_on(before)


def test_e3_what_is_advised_where_no_journal_is_whole_restores_the_tier(tier: Tier) -> None:
    tier.lose()
    before = tier.topics()
    tier.export()
    for path in (tier.directory / "@journal").iterdir():
        path.write_bytes(b"rot")
    said = tier.run("check", status=1).err
    assert "move @journal, @snapshot and @boundary aside, and nothing else" in said
    aside = tier.root.parent / "aside"
    aside.mkdir()
    for name in ("@journal", "@snapshot", "@boundary"):
        if (tier.directory / name).exists():
            (tier.directory / name).rename(aside / name)
    said = tier.run("topics", status=1).err
    assert "from the messages (`tieredstore rebuild --metadata`)" in said
    tier.run("rebuild", "--metadata", "--backup", tier.backup)
    tier.assert_goes_on(before)
    shutil.rmtree(aside)


def test_e3_the_same_advice_restores_a_tier_in_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    broker = FakeBroker(tmp_path / "store")
    broker.put_many("A", 0, [b"x"] * 50)
    where = f"memory://bucket/{tmp_path.name}"
    named = ("-D", "brokerClusterName=c", "-D", "brokerName=b", "--tier", where)

    def run(*words: str | Path, status: int = 0) -> Done:
        result = CliRunner().invoke(cli, [*named, *map(str, words)])
        assert result.exit_code == status, result.output
        return Done(result.exit_code, result.stdout, result.stderr)

    run("tier", broker.directory)
    before = run("topics", "--json").rows
    for name in [one for one in memory.store if "/@journal/" in one or "/@snapshot/" in one]:
        memory.pipe_file(name, b"rot")
    said = run("check", status=1).err
    assert "move @journal, @snapshot and @boundary aside, and nothing else" in said
    for name in [one for one in memory.store if "/@journal/" in one or "/@snapshot/" in one]:
        memory.rm_file(name)
    assert [one for one in memory.store if "/@parts/" in one]  # the messages
    run("rebuild", "--metadata")
    assert run("topics", "--json").rows == before
    assert run("check", "--json").rows == []
    memory.store.clear()


def test_an_export_replaces_regular_files_alone_and_keeps_links_and_modes(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    tier.backup.write_bytes(b"older")
    tier.backup.chmod(0o600)
    link = tmp_path / "link.json"
    link.symlink_to(tier.backup)
    tier.run("metadata", "export", "--overwrite", link)
    assert link.is_symlink()
    assert len(json.loads(tier.backup.read_bytes())) > 1
    assert S_IMODE(tier.backup.stat().st_mode) == 0o600
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for other in (fifo, tmp_path, Path("/dev/null")):
        said = tier.run("metadata", "export", "--overwrite", other, status=2).err
        assert f"{other} is no regular file: name another" in said
    assert fifo.is_fifo()
    assert {one.name for one in tmp_path.iterdir()} == {
        "backup.json", "fifo", "link.json", "store", "tier"
    }  # fmt: skip


def test_an_export_through_a_dangling_link_makes_its_target(tmp_path: Path) -> None:
    tier = Tier(tmp_path)
    link = tmp_path / "link.json"
    link.symlink_to(tier.backup)
    tier.run("metadata", "export", link)
    assert link.is_symlink()
    assert b"A" in tier.backup.read_bytes()
