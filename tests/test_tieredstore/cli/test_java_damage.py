"""D8: a damaged queue of a tier that RocketMQ's store wrote costs the others nothing."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.cli import Done, settings
from tests.support.fake_broker import FakeBroker
from tests.support.golden import VARIANTS_520, unpack
from tests.support.java_tier import java_tier
from tieredstore.cli.main import cli

VICTIM = "A/1"
OTHERS = ("A/0", "B/0")
MESSAGES = 60


class Tier:
    """Three queues with several files each, without metadata of ours."""

    def __init__(self, root: Path) -> None:
        broker = FakeBroker(root / "store", consume_queue_bytes=400)
        for number in range(MESSAGES):
            for topic, queue in (("A", 0), ("A", 1), ("B", 0)):
                broker.put(topic, queue, b"%04d" % number)
        self.metadata = root / "java.json"
        self.root = root / "tier"
        sizes = ("tieredStoreCommitLogMaxSize=2000", "tieredStoreConsumeQueueMaxSize=400")
        self.directory = java_tier(self.root, broker.directory, self.metadata, *sizes)

    def files(self, queue: str, kind: str) -> list[Path]:
        """In order: a name ends with its base."""
        return sorted((self.directory / queue / kind).iterdir(), key=lambda path: path.name[-20:])

    def run(self, *words: str | Path, status: int = 0) -> Done:
        """As a process of its own would, but quick."""
        arguments = ["-D", f"tieredStoreFilePath={self.root}", *map(str, words)]
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == status, result.output
        return Done(result.exit_code, result.stdout, result.stderr)

    def java(self, *words: str, status: int = 0) -> Done:
        """A command that reads the tier with RocketMQ's metadata."""
        return self.run(*words, "--java-metadata", self.metadata, status=status)

    def read(self, queue: str, *words: str, status: int = 0) -> list[int]:
        """The bodies that are read of a queue, as numbers."""
        done = self.java("read", *queue.split("/"), "--json", *words, status=status)
        return [int(row["body"]) for row in done.rows]


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return Tier(tmp_path)


@pytest.mark.parametrize("kind", ["COMMIT_LOG", "CONSUME_QUEUE"])
@pytest.mark.parametrize("which", [0, 1, -1], ids=["first", "middle", "newest"])
def test_d8_a_missing_file_of_one_queue_ends_no_read_of_another_and_is_found(
    tier: Tier, kind: str, which: int
) -> None:
    files = tier.files(VICTIM, kind)
    assert len(files) >= 3
    files[which].unlink()
    for queue in OTHERS:
        assert tier.read(queue) == list(range(MESSAGES))
    found = tier.java("check", "--json", status=1).rows
    assert any(files[which].name in row["path"] + row["detail"] for row in found)
    assert all(row["path"].startswith(VICTIM) for row in found)
    if which == 0 and kind == "CONSUME_QUEUE":
        return  # what of it can be served is not known
    served = tier.read(VICTIM, status=1)
    assert served == list(range(len(served)))
    assert bool(served) == (which != 0)
    if which == 0:
        assert tier.read(VICTIM, "--offset", "50") == list(range(50, MESSAGES))
    if which == -1:
        said = tier.java("topics", "--json", status=1)
        assert said.err.startswith(f"tieredstore: not all of {VICTIM} is served: ")
        assert len(said.rows) == 3


def test_d8_a_queue_of_which_nothing_can_be_served_says_why(tier: Tier) -> None:
    for path in tier.files(VICTIM, "COMMIT_LOG"):
        path.unlink()
    for words in (["read", *VICTIM.split("/")], ["read", *VICTIM.split("/"), "--once"]):
        said = tier.java(*words, status=1).err
        assert f"{VICTIM}/COMMIT_LOG" in said
        assert len(said.splitlines()) == 1
    assert len(tier.java("topics", "--json", status=1).rows) == 2
    assert tier.java("segments", "A", "0").err == ""


def test_d8_an_import_names_every_damaged_queue_and_leaves_out_what_it_is_told_to(
    tier: Tier,
) -> None:
    tier.files(VICTIM, "COMMIT_LOG")[1].unlink()
    path = tier.files("B/0", "COMMIT_LOG")[0]
    raw = bytearray(path.read_bytes())
    raw[4] ^= 1
    path.write_bytes(raw)
    words = ("metadata", "import", tier.metadata)
    said = tier.run(*words, status=1).err.splitlines()
    assert said[0].startswith(f"{VICTIM} cannot be imported: ")
    assert said[1].startswith("B/0 cannot be imported: ")
    assert said[2].startswith("tieredstore: 2 queues are damaged, so nothing was imported")
    assert not list(tier.directory.glob("@journal/*"))
    words = (*words, "--without", VICTIM, "--without", "B")
    assert "or `tier` would write over its files" in tier.run(*words, status=2).err
    for queue in (VICTIM, "B/0"):
        (tier.directory / queue).rename(tier.root / f"aside-{queue[0]}")
    assert [row["messages"] for row in tier.run(*words, "--json").rows] == [MESSAGES]
    assert tier.run("check", "--json").rows == []
    assert [row["topic"] for row in tier.run("topics", "--json").rows] == ["A"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("Nothing/0", "has no such queue"),
        ("A/7", "has no such queue"),
        ("A/x", "is no whole number"),
        ("../0", "this is no topic"),
    ],
)
def test_d8_what_is_left_out_must_be_known(tier: Tier, word: str, said: str) -> None:
    words = ("metadata", "import", tier.metadata, "--without", word)
    assert said in tier.run(*words, status=2).err
    assert not list(tier.directory.glob("@journal/*"))


@pytest.mark.leaves_findings("checksum", why="a bit of the index file is flipped at the end")
def test_d8_a_damaged_index_file_hides_no_queue_and_an_import_knows_its_checksum(
    tmp_path: Path,
) -> None:
    tree = unpack(VARIANTS_520, "closed", tmp_path)
    options = settings(tree, tree.tier)

    def run(*words: str | Path, status: int = 0) -> Done:
        result = CliRunner().invoke(cli, [*options, *map(str, words), "--json"])
        assert result.exit_code == status, result.output
        return Done(result.exit_code, result.stdout, result.stderr)

    (index,) = tree.broker_directory.glob("rmq_sys_INDEX/0/INDEX/*")
    raw = index.read_bytes()
    index.unlink()
    assert run("topics", "--java-metadata", tree.java_metadata).err == ""
    (row,) = run("check", "--java-metadata", tree.java_metadata, status=1).rows
    assert (row["finding"], row["path"]) == ("java-queue", "rmq_sys_INDEX/0")
    said = run("metadata", "import", tree.java_metadata, status=1).err
    assert "rmq_sys_INDEX/0 cannot be imported" in said
    index.write_bytes(raw)
    run("metadata", "import", tree.java_metadata)
    assert run("check").rows == []
    index.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    (finding,) = run("check", status=1).rows
    assert (finding["finding"], finding["path"].split("/")[-1]) == ("checksum", index.name)
