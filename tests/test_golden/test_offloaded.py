"""Golden stores tiered to a directory and offloaded to S3: everything reads as it did before."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from container.lookup.find import find_messages
from container.lookup.query import KeyQuery
from container.metadata.objects import is_away
from container.names.queue_id import FLAT_FILES
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import SystemClock
from tests.support.cli import settings
from tests.support.golden import (
    GOLDEN_TREES,
    ROCKETMQ_533,
    GoldenSet,
    GoldenTree,
    expected,
    tree_name,
    unpacked,
)
from tests.test_container.lookup.test_golden import EVERY, JAVA_CUTS_AT
from tests.test_golden.test_cold_reads import check_pulls
from tests.test_golden.test_object_stores import assert_every_line, rows
from tests.test_golden.test_offset_by_time import check_rows
from tieredstore.cli.main import cli
from tieredstore.config.effective import Config
from tieredstore.session.reader import existing_tier, open_reader

FINDINGS = pytest.mark.leaves_findings(
    "journal", why="the second store is on S3, which the fixture lacks"
)


async def assert_searches(tree: GoldenTree, config: Config) -> None:
    """Every row of times, pulls and queries, from what lies in the second store alone."""
    async with open_reader(config) as reader:
        await _assert_away(reader)
        async with TieredMessageFetcher(reader, clock=SystemClock()) as fetcher:
            await check_rows(tree.golden, fetcher.offset_by_time)
            await check_pulls(fetcher, tree.golden)
        for row in expected(tree.golden, "queries"):
            query = KeyQuery(row["topic"], row["key"], EVERY)
            answer = await find_messages(reader, query)
            assert answer.damage == ()
            found = [[one.queue_id, one.queue_offset] for one in answer.messages]
            # Java lacks keys of some hashes, gives any 64, and takes the text between two blanks
            # for a key; see test_container/lookup.
            wanted = row.get("found", []) if row["key"] else []
            assert row["key"] or found == [], row
            assert all(place in found for place in wanted), row
            assert not wanted or len(wanted) == JAVA_CUTS_AT or len(found) == len(wanted), row


async def _assert_away(reader: TierReader) -> None:
    for queue in reader.state.queues:
        container = reader.container(queue)
        assert container is not None
        for kind in FLAT_FILES:
            assert all(is_away(one) for one in await container.segments(kind)), queue


def assert_offloaded_reads_back(
    golden: GoldenSet, kind: str, first: Path | str, second: str
) -> None:
    tree = unpacked(golden, kind)
    second_store = ["-D", f"tieredStoreOffloadPath={second}"]
    options = [*settings(tree, first), *second_store, "-D", "tieredStoreOffloadDeletionLag=0"]
    rows(*options, "tier", tree.store)
    topics = {row["topic"] for row in rows(*options, "topics")}
    messages = {topic: rows(*options, "read", topic, "--digest") for topic in topics}
    moved = [row for topic in sorted(topics) for row in rows(*options, "offload", topic)]
    assert sum(row["segments"] for row in moved) >= 2 * len(tree.queues())
    for words in (["check", "--bodies"], ["audit", "--bodies"], ["scrub"]):
        done = CliRunner().invoke(cli, [*map(str, options), *words])
        assert done.exit_code == 0, done.output
        assert "nothing is wrong" in done.stdout, done.output
    assert_every_line(golden, options)
    for topic, before in messages.items():
        assert rows(*options, "read", topic, "--digest") == before
    named = {"tieredStoreFilePath": str(first), "tieredStoreOffloadPath": second}
    config = existing_tier(Config.load(settings=named))
    asyncio.run(assert_searches(tree, config))


@FINDINGS
def test_every_line_time_and_key_from_s3(s3_url: str, tmp_path: Path) -> None:
    assert_offloaded_reads_back(ROCKETMQ_533, "closed", tmp_path / "tier", s3_url)


@FINDINGS
@pytest.mark.nightly
@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES[1:], ids=tree_name)
def test_every_line_of_the_others_from_s3(
    golden: GoldenSet, kind: str, s3_url: str, tmp_path: Path
) -> None:
    assert_offloaded_reads_back(golden, kind, tmp_path / "tier", s3_url)


@pytest.mark.nightly
def test_every_line_from_one_place_on_s3_to_another(s3_url: str) -> None:
    assert_offloaded_reads_back(ROCKETMQ_533, "closed", f"{s3_url}/first", f"{s3_url}/second")
