"""Every misuse ends with its status and one sentence, and leaves nothing behind."""

import errno
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from container.names.rocketmq import broker_directory
from tests.support.cli import complaints, settings
from tests.support.golden import ROCKETMQ_533, unpack, unpacked
from tieredstore.cli.failures import explain
from tieredstore.cli.main import cli


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def refused(result: Result, status: int) -> str:
    """The one sentence of a refusal."""
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    lines = complaints(result.stderr).splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("tieredstore: ")
    return lines[0]


def options(tier: Path) -> list[str]:
    return settings(unpacked(ROCKETMQ_533), tier)


def test_an_unknown_command_names_the_nearest() -> None:
    assert "did you mean topics?" in refused(invoke("topcs"), 2)
    assert "there are tier, run, put, topics" in refused(invoke("zzz"), 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["topics", "--jsn"], "no such option"),
        (["read"], "missing argument 'TOPIC'"),
        (["read", "T", "--offset", "3"], "--offset is about one queue: name it"),
        (["read", "T", "--once"], "--once is about one queue: name it"),
        (["read", "T", "--since", "yesterday"], "'yesterday' is no time: write 2026-"),
        (["read", "T", "--since", "-1h", "--until", "-2h"], "--until is not later than --since"),
        (["read", "T", "--tags", "a > 3"], "'a > 3' is an SQL92 filter, and only tags are"),
        (["read", "T", "--tags", "TAGS IS NOT NULL AND a"], "is an SQL92 filter"),
        (["read", "T", "x"], "'x' is no whole number"),
        (["read", "T", ""], "'' is no whole number"),
        (["read", "T", "1_0"], "'1_0' is no whole number"),
        (["read", "T", "0", "--offset", "\u0663"], "is no whole number"),
        (["read", "T", "--", "-1"], "-1 is less than 0"),
        (["read", "", "0"], "it is empty"),
        (["read", "T", "-1"], "no such option"),
        (["read", "T", "2147483648"], "2147483648 is over 2147483647"),
        (["read", "T", "0", "--offset", "-1"], "-1 is less than 0"),
        (["read", "T", "0", "--max", "0"], "0 is less than 1"),
        (["read", "T", "0", "--max", "9" * 5000], " is over "),
        (["read", "T", "0", "--tags", "||"], "no tag"),
        (["read", "../T", "0"], "path separator"),
        (["read", "@journal", "0"], "begins with @"),
        (["segments", ".."], "relative directory"),
        (["segments", "a\nb"], "control character"),
        (["repair", "T", "0"], "missing option '--cut-to-hot'"),
        (["repair", "T/..", "0", "--cut-to-hot"], "path separator"),
        (["topics", "--java-metadata", "none.json"], "none.json cannot be read"),
        (["metadata", "import", "none.json"], "none.json cannot be read"),
        (["tier"], "give STORE_DIR, or storePathRootDir in the file"),
        (["tier", ""], "it is empty"),
        (["metadata", "export", ""], "it is empty"),
        (["metadata", "nothing"], "no such command"),
        (["tier", "no-such-directory"], "no such directory"),
    ],
)
def test_wrong_words_end_with_2(golden_tier: Path, arguments: list[str], words: str) -> None:
    assert words in refused(invoke(*options(golden_tier), *arguments), 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["read", "G_Nothing", "0"], "nothing of G_Nothing/0"),
        (["read", "G_Orders", "9"], "nothing of G_Orders/9"),
        (["segments", "G_Nothing"], "nothing of G_Nothing"),
        (["read", "G_Orders", "0", "--offset", "601"], "choose one in [0, 600)"),
    ],
)
def test_what_is_not_there_ends_with_1(golden_tier: Path, arguments: list[str], words: str) -> None:
    assert words in refused(invoke(*options(golden_tier), *arguments), 1)


def test_a_missing_tier_is_not_found_and_not_made(tmp_path: Path) -> None:
    root = tmp_path / "tier"
    for command in (["topics"], ["check"], ["read", "T", "0"], ["metadata", "export", "x"]):
        assert "there is no tier" in refused(invoke(*options(root), *command), 1)
    assert not root.exists()


def test_a_tier_must_be_named(tmp_path: Path) -> None:
    assert "tieredStoreFilePath is not set: give --tier PLACE" in refused(invoke("topics"), 2)
    assert "tieredStoreFilePath is not set" in refused(invoke("tier", tmp_path), 2)


def test_a_tier_of_another_broker_or_cluster_is_named(golden_tier: Path) -> None:
    for given in ("brokerName=other", "brokerClusterName=Other"):
        sentence = refused(invoke(*options(golden_tier), "-D", given, "topics"), 2)
        assert "belongs to golden-a of cluster GoldenCluster" in sentence
        assert "-D brokerClusterName=GoldenCluster -D brokerName=golden-a" in sentence


def test_a_moved_tier_keeps_its_owner(golden_tier: Path, tmp_path: Path) -> None:
    ours = broker_directory("GoldenCluster", "golden-a")
    theirs = broker_directory("GoldenCluster", "other")
    shutil.copytree(golden_tier / ours, tmp_path / theirs)
    store = unpacked(ROCKETMQ_533).store
    result = invoke(*options(tmp_path), "-D", "brokerName=other", "tier", store)
    assert "golden-a" in refused(result, 2)


def test_what_is_no_store_is_refused_before_a_tier_is_begun(tmp_path: Path) -> None:
    store = tmp_path / "broker" / "store"
    store.mkdir(parents=True)
    sentence = refused(invoke(*options(tmp_path / "tier"), "tier", store), 2)
    assert "no RocketMQ store" in sentence
    assert "storePathRootDir and storePathCommitLog where that lies elsewhere" in sentence
    (store / "afile").touch()
    sentence = refused(invoke(*options(tmp_path / "tier"), "tier", store / "afile"), 2)
    assert sentence.startswith("tieredstore: this is a file: give the broker's storePathRootDir")
    (store / "commitlog").mkdir()
    for near in (store.parent, store / "commitlog"):
        sentence = refused(invoke(*options(tmp_path / "tier"), "tier", near), 2)
        assert f"storePathRootDir: did you mean {store}?" in sentence
    (store / "commitlog" / "notes.txt").write_text("x")
    assert "20 digits" in refused(invoke(*options(tmp_path / "tier"), "tier", store), 2)
    assert not (tmp_path / "tier").exists()


@pytest.mark.parametrize("inside", ["store/tier", "store", "."])
def test_store_and_tier_inside_one_another_are_refused(tmp_path: Path, inside: str) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "store")
    for store in (tmp_path / "store", link):
        result = invoke(*options(tmp_path / inside), "tier", store)
        assert "inside one another" in refused(result, 2)


def test_a_tier_in_the_directory_of_another_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (other := tmp_path / "other").mkdir()
    (other / "commitlog").mkdir()
    result = invoke(*options(other), "tier", tmp_path / "store")
    assert "is the directory of another store" in refused(result, 2)
    assert [path.name for path in other.iterdir()] == ["commitlog"]


@pytest.mark.parametrize("command", ["tier", "repair"])
def test_a_tier_among_the_brokers_files_elsewhere_is_refused(tmp_path: Path, command: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (store := tmp_path / "store").mkdir()
    given = [*options(elsewhere), "-D", f"storePathCommitLog={elsewhere}"]
    directory = elsewhere / broker_directory("GoldenCluster", "golden-a")
    directory.mkdir(parents=True)
    (store / "commitlog").symlink_to(elsewhere)
    (store / "consumequeue").symlink_to(elsewhere)
    words = [store] if command == "tier" else ["T", "0", "--cut-to-hot", "--store", store]
    for settings_given in (given, given[:-2]):
        assert "inside one another" in refused(invoke(*settings_given, command, *words), 2)
    assert list(directory.iterdir()) == []


def test_a_loop_of_symbolic_links_is_no_directory(tmp_path: Path) -> None:
    (loop := tmp_path / "loop").symlink_to(loop)
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    assert "no such directory" in refused(invoke(*options(tmp_path / "t"), "tier", loop), 2)
    sentence = refused(invoke(*options(loop), "tier", tmp_path / "store"), 2)
    assert "symbolic link" in sentence


def test_disabled_tiering_is_refused(tmp_path: Path) -> None:
    result = invoke(*options(tmp_path / "t"), "-D", "tieredStorageLevel=DISABLE", "tier", tmp_path)
    assert "switches tiering off" in refused(result, 2)


def test_metadata_files_are_neither_replaced_nor_imported_twice(
    golden_tier: Path, tmp_path: Path
) -> None:
    file = tmp_path / "metadata.json"
    assert invoke(*options(golden_tier), "metadata", "export", file).exit_code == 0
    assert "--overwrite" in refused(invoke(*options(golden_tier), "metadata", "export", file), 2)
    assert "has a journal already" in refused(
        invoke(*options(golden_tier), "metadata", "import", file), 2
    )


@pytest.mark.parametrize("raw", [b"", b"{", b"[" * 10_000, b"[]", bytes(range(256))])
def test_a_file_that_is_no_java_metadata_is_wrong_use(
    golden_tier: Path, tmp_path: Path, raw: bytes
) -> None:
    (file := tmp_path / "metadata.json").write_bytes(raw)
    sentence = refused(invoke(*options(golden_tier), "topics", "--java-metadata", file), 2)
    assert f"{file} is no tieredStoreMetadata.json" in sentence
    (empty := tmp_path / "t" / broker_directory("GoldenCluster", "golden-a")).mkdir(parents=True)
    sentence = refused(invoke(*options(tmp_path / "t"), "metadata", "import", file), 2)
    assert f"{file} is no tieredStoreMetadata.json" in sentence
    assert list(empty.iterdir()) == []


def test_a_java_tier_is_not_read_as_ours() -> None:
    tree = unpacked(ROCKETMQ_533)
    assert "--java-metadata" in refused(invoke(*options(tree.tier), "topics"), 1)


@pytest.mark.parametrize(("words", "status"), [(["topics"], 1), (["tier", "none"], 2)])
def test_a_traceback_is_shown_under_debug_only(
    tmp_path: Path, words: list[str], status: int
) -> None:
    given = options(tmp_path / "none")
    sentence = refused(invoke(*given, *words), status)
    debug = invoke("--debug", *given, *words)
    assert debug.exit_code == status
    assert "Traceback" in debug.stderr
    assert debug.stderr.splitlines()[-1] == sentence


@pytest.mark.parametrize("words", [[], ["metadata"]], ids=["", "metadata"])
def test_no_command_at_all_shows_the_help_and_is_wrong_use(words: list[str]) -> None:
    result = invoke(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.rstrip("\n") == invoke(*words, "--help").stdout.rstrip("\n")


def test_a_directory_that_may_not_be_read_is_wrong_use() -> None:
    status, sentence = explain(PermissionError(errno.EACCES, "Permission denied", "some/tier"))
    assert status == 2
    assert "permission denied" in sentence
    assert "some/tier" in sentence


def test_a_refusal_of_the_tiers_storage_names_the_tier(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (file := tmp_path / "file").write_text("")
    for root in (file, file / "tier", tmp_path / ("x" * 256)):
        given = options(root)
        assert str(root) in refused(invoke(*given, "tier", tmp_path / "store"), 2)
        assert str(root) in refused(invoke(*given, "topics"), 2)


def test_a_place_that_cannot_be_written_is_wrong_use_and_named_without_what_was_tried(
    tmp_path: Path,
) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (file := tmp_path / "file").write_text("")
    for root in (Path("/proc/x"), Path("/sys/x"), file):
        sentence = refused(invoke(*options(root), "tier", tmp_path / "store"), 2)
        assert str(root) in sentence
        assert "@probe" not in sentence


def test_a_tier_that_is_not_ours_is_neither_written_nor_taken(tmp_path: Path) -> None:
    tree = unpack(ROCKETMQ_533, "closed", tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tree.tier.rglob("*")}
    sentence = refused(invoke(*options(tree.tier), "tier", tree.store), 2)
    assert "metadata import" in sentence
    assert str(tree.broker_directory) in sentence
    assert {path: path.stat().st_mtime_ns for path in tree.tier.rglob("*")} == before


def test_a_tier_whose_journal_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    tree = unpack(ROCKETMQ_533, "closed", tmp_path)
    given = options(tmp_path / "ours")
    assert invoke(*given, "tier", tree.store).exit_code == 0
    (journal,) = (tmp_path / "ours").glob("*/*/@journal")
    journal.rename(tmp_path / "away")
    assert "no journal" in refused(invoke(*given, "tier", tree.store), 2)
    (tmp_path / "away").rename(journal)
    assert invoke(*given, "tier", tree.store).exit_code == 0


def test_what_an_interrupted_start_left_is_no_strange_tier(tmp_path: Path) -> None:
    tree = unpack(ROCKETMQ_533, "closed", tmp_path)
    directory = tmp_path / "ours" / broker_directory("GoldenCluster", "golden-a")
    for left in ("@probe/0123", "@journal/@tmp-1-2", "@lock"):
        (directory / left).parent.mkdir(parents=True, exist_ok=True)
        (directory / left).write_text("x")
    (directory / "G_Orders" / "0" / "COMMIT_LOG").mkdir(parents=True)
    assert invoke(*options(tmp_path / "ours"), "tier", tree.store).exit_code == 0


def test_topics_are_refused_with_one_sentence_each_that_cannot_steer_a_terminal(
    tmp_path: Path,
) -> None:
    tree = unpack(ROCKETMQ_533, "closed", tmp_path)
    for queue in ("0", "1"):
        (tree.store / "consumequeue" / "evil\x1b[2J\n" / queue).mkdir(parents=True)
    (tree.store / "batchconsumequeue" / "G_Big" / "0").mkdir(parents=True)
    result = invoke(*options(tmp_path / "new"), "tier", tree.store)
    assert result.exit_code == 0
    assert "\x1b" not in result.output
    refusals = [line.split(" WARNING ")[1] for line in complaints(result.stderr).splitlines()]
    assert [line.partition(":")[0].strip() for line in refusals] == [
        "G_Big is refused",
        "evil.[2J. is refused",
    ]
