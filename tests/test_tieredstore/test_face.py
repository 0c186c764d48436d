"""What a program that reads sees: `tieredstore.open`, and the public names."""

import gc
import inspect
import pydoc
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tieredstore
from tests.support.cli import run, settings
from tests.support.fake_broker import FakeBroker
from tests.support.golden import ROCKETMQ_533, GoldenTree, expected, unpacked
from tieredstore import sync
from tieredstore.cli.message_printer import message_row
from tieredstore.metrics.summary import QueueSummaries

assert tieredstore.ReadableTier  # its imports read files, so they are not left to a running loop

CLUSTER, BROKER = "GoldenCluster", "golden-a"


@pytest.fixture(scope="module")
def tree() -> GoldenTree:
    return unpacked(ROCKETMQ_533)


@pytest.fixture(scope="module")
def tier(tree: GoldenTree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier of the golden store; read only."""
    root = tmp_path_factory.mktemp("face") / "tier"
    run(*settings(tree, root), "tier", tree.store)
    return root


def below(root: Path, pattern: str) -> list[Path]:
    """The files of that pattern in order."""
    return sorted(root.glob(pattern))


# Names.


def test_every_public_name_is_there_with_a_docstring_of_its_own() -> None:
    assert len(set(tieredstore.__all__)) == len(tieredstore.__all__)
    for name in tieredstore.__all__:
        found = getattr(tieredstore, name)
        assert inspect.getdoc(found), name
        inherited = [getattr(base, "__doc__", None) for base in getattr(found, "__mro__", ())[1:]]
        assert found.__doc__ not in inherited, f"{name} has the docstring of its base"
    assert tieredstore.ReadableTier  # loads modules of this package
    listed = {name for name in dir(tieredstore) if not name.startswith("__")}
    assert listed == set(tieredstore.__all__)


def test_the_help_of_the_package_lists_every_public_name() -> None:
    text = pydoc.plain(pydoc.render_doc(tieredstore))
    first_screen = "\n".join(text.splitlines()[:50])
    for name in tieredstore.__all__:
        assert name in first_screen, name
    assert "async with tieredstore.open" in first_screen


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Reeder"):
        tieredstore.Reeder  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("command", ["listing", "read", "check", "config"])
def test_commands_that_read_load_no_arrow(command: str) -> None:
    program = (
        "import sys, tieredstore\n"
        "assert 'numpy' not in sys.modules\n"
        f"import tieredstore.cli.commands.{command}\n"
        "print([name for name in ('pyarrow', 'anyio', 'tieredstore.following.hot_log')"
        " if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


# Notebooks.


async def test_a_notebook_shows_tiers_queues_and_messages_as_tables(
    tier: Path, tmp_path: Path
) -> None:
    opened = tieredstore.open(tier)
    assert opened._repr_html_() == "<p>ReadableTier: not open</p>"
    async with opened:
        shown = opened._repr_html_()
        assert "<td>G_Orders</td><td>4</td><td>2,400</td><td>0</td>" in shown
        queues = opened.queues("G_Orders")
        assert isinstance(queues, QueueSummaries)
        assert "<td>G_Orders</td><td>3</td><td>600</td><td>0</td><td>600</td>" in (
            queues._repr_html_()
        )
        many = QueueSummaries(queues * 100)
        assert many._repr_html_().endswith("<p>200 queues more</p>")
        async for message in opened.messages("G_Orders", 0, messages_max=1):
            assert "<td>G_Orders/0</td>" in message._repr_html_()
            assert "<td>order-0 user-0</td>" in message._repr_html_()


def test_a_notebook_runs_nothing_that_a_message_holds() -> None:
    def shown(body: bytes) -> str:
        stored = tieredstore.StoredMessage.compose(
            "T", 0, 0, body=body, properties=b"<b>\x01<i>\x02"
        )
        return tieredstore.Message(stored, body)._repr_html_()

    assert "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td>" in shown(b"<script>alert(1)</script>")
    assert "<td>&lt;b&gt;</td><td>&lt;i&gt;</td>" in shown(b"")
    assert "<td>ff 00</td>" in shown(b"\xff\0")
    assert "... 3,999,000 bytes more" in shown("é".encode() * 2_000_000)


# Opening.


async def test_the_only_broker_of_a_tier_needs_no_name(tier: Path) -> None:
    for where in (tier, str(tier), tier.as_uri(), f"file://localhost{tier}"):
        async with tieredstore.open(where) as opened:
            assert (opened.cluster, opened.broker) == (CLUSTER, BROKER)
            assert opened.directory.parent.parent == tier
    async with tieredstore.open(tier, broker=BROKER) as opened:
        assert opened.cluster == CLUSTER


async def test_a_configuration_file_names_the_tier_and_arguments_win(
    tier: Path, tmp_path: Path
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerClusterName={CLUSTER}\nbrokerName=b\ntieredStoreFilePath={tier}\n")
    with pytest.raises(tieredstore.ConfigError, match=r"belongs to golden-a .*, not to b of"):
        async with tieredstore.open(conf=conf):
            pass
    async with tieredstore.open(conf=conf, broker=BROKER) as opened:
        assert opened.broker == BROKER
    given = {"tieredStoreExtentCheckEnable": True, "readAheadMessageCountThreshold": 64}
    async with tieredstore.open(tier, settings=given) as opened:
        assert len([message async for message in opened.messages("G_Orders", 0)]) == 600


async def test_a_tier_of_several_brokers_wants_a_name_and_lists_them(
    tier: Path, tmp_path: Path
) -> None:
    broker = FakeBroker(tmp_path / "store")
    broker.put("A", 0, b"body")
    root = tmp_path / "tier"
    for name in ("a", "b"):
        async with tieredstore.follow(broker.directory, root, cluster="C", broker=name) as follower:
            await follower.drain()
    with pytest.raises(tieredstore.ConfigError) as refused:
        async with tieredstore.open(root):
            pass
    assert "belongs to a of cluster C and b of cluster C: name one" in str(refused.value)
    assert "cluster='C', broker='a'" in str(refused.value)
    async with tieredstore.open(root, broker="b") as opened:
        assert opened.broker == "b"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("s3:///tier", "names no bucket: write s3://bucket/prefix"),
        ("file://elsewhere/tier", "no directory of this host"),
        ("file://", "no directory of this host"),
    ],
)
async def test_a_url_that_cannot_be_opened_is_refused(where: str, words: str) -> None:
    with pytest.raises(tieredstore.ConfigError, match=words) as refused:
        async with tieredstore.open(where):
            pass
    assert "\n" not in str(refused.value)


async def test_a_tier_must_be_named_and_settings_be_spelt_right() -> None:
    with pytest.raises(tieredstore.ConfigError, match="tieredStoreFilePath is not set"):
        async with tieredstore.open():
            pass
    with pytest.raises(tieredstore.ConfigError, match="did you mean brokerName"):
        async with tieredstore.open("tier", settings={"brokerNam": "b"}):
            pass


async def test_what_is_no_tier_is_one_sentence_that_says_why(tier: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for where, words in (
        (tmp_path / "nowhere", "no such directory"),
        (tmp_path, "no tier in this directory"),
        (below(tier, "*/*")[0], "which is a part of one: give the one above"),
    ):
        with pytest.raises(tieredstore.NotFound, match=words) as refused:
            async with tieredstore.open(where):
                pass
        assert str(where) in str(refused.value)
        assert "\n" not in str(refused.value)
    for where in (tmp_path / "file", tmp_path / ("x" * 300)):
        with pytest.raises(tieredstore.ConfigError, match="cannot be read"):
            async with tieredstore.open(where):
                pass


async def test_a_java_tier_is_read_by_its_metadata_file(tree: GoldenTree) -> None:
    with pytest.raises(tieredstore.NotFound, match="metadata file"):
        async with tieredstore.open(tree.tier):
            pass
    async with tieredstore.open(tree.tier, java_metadata=tree.java_metadata) as opened:
        assert opened.is_java
        assert len([message async for message in opened.messages("G_Orders", 0)]) == 600
        assert [finding async for finding in opened.check()] == []


# Reading.


async def test_queues_are_listed_with_their_offsets(tier: Path, tree: GoldenTree) -> None:
    async with tieredstore.open(tier) as opened:
        queues = opened.queues()
        assert [(one.topic, one.queue_id) for one in queues] == [tuple(q) for q in tree.queues()]
        assert opened.topics() == sorted({one.topic for one in queues})
        one = opened.queue("G_Orders", 0)
        assert (one.min_offset, one.max_offset, one.messages, one.lost) == (0, 600, 600, 0)
        assert one in opened.queues("G_Orders")
        assert sum(one.messages for one in queues) == len(expected(ROCKETMQ_533, "messages"))


async def test_messages_are_those_that_the_broker_sent(tier: Path) -> None:
    wanted = [
        row
        for row in expected(ROCKETMQ_533, "messages")
        if (row["topic"], row["queue_id"]) == ("G_Orders", 0)
    ]
    async with tieredstore.open(tier) as opened:
        found = [message async for message in opened.messages("G_Orders", 0)]
        assert [message.offset for message in found] == [row["queue_offset"] for row in wanted]
        for message, row in zip(found, wanted, strict=True):
            assert message.properties == row["properties"]
            assert message.tags == row["properties"].get("TAGS", "")
            assert message.store_timestamp == row["store_timestamp"]
            assert message.stored_at is not None
            assert message.stored_at == message.stored.stored_at
            assert message.offset == message.stored.offset
            assert message.stored_at.timestamp() == row["store_timestamp"] / 1000
            assert len(message.body) == row["body_length"]
            assert message.born_host == row["born_host"].lstrip("/")
            assert message.store_host == row["store_host"].lstrip("/")
        part = opened.messages("G_Orders", 0, 17, messages_max=5)
        assert [message.offset async for message in part] == [17, 18, 19, 20, 21]
        tagged = opened.messages("G_Orders", 0, tags="TagA || 订单")
        assert {message.tags async for message in tagged} == {"TagA", "订单"}
        assert "G_Orders/0 17" in repr(found[17])


async def test_a_topic_is_read_by_queue_or_by_time_and_between_two_times(tier: Path) -> None:
    rows = [row for row in expected(ROCKETMQ_533, "messages") if row["topic"] == "G_Orders"]
    middle = sorted(row["store_timestamp"] for row in rows)[1000]
    by_queue = [(row["queue_id"], row["queue_offset"]) for row in rows]
    recent = {
        (row["queue_id"], row["queue_offset"]) for row in rows if row["store_timestamp"] >= middle
    }
    since = datetime.fromtimestamp(middle / 1000, UTC)
    async with tieredstore.open(tier) as opened:
        found = [(one.queue_id, one.offset) async for one in opened.messages("G_Orders")]
        assert found == sorted(by_queue)
        times = [one.store_timestamp async for one in opened.messages("G_Orders", by_time=True)]
        assert times == sorted(row["store_timestamp"] for row in rows)
        new = [one async for one in opened.messages("G_Orders", since=since)]
        assert {(one.queue_id, one.offset) for one in new} == recent
        old = [one async for one in opened.messages("G_Orders", until=middle)]
        assert len(old) == len(rows) - len(recent)


def test_the_sync_face_reads_a_topic_in_the_same_two_orders(tier: Path) -> None:
    with sync.open(tier) as opened:
        by_queue = [(one.queue_id, one.offset) for one in opened.messages("G_Orders")]
        assert len(by_queue) == 2400
        assert by_queue == sorted(by_queue)
        times = [one.store_timestamp for one in opened.messages("G_Orders", by_time=True)]
        assert len(times) == 2400
        assert times == sorted(times)
        some = opened.messages("G_Orders", since=times[9], until=times[1000], messages_max=50)
        assert all(times[9] <= one.store_timestamp < times[1000] for one in some)


async def test_what_cannot_be_meant_is_refused_when_it_is_asked_for(tier: Path) -> None:
    async with tieredstore.open(tier) as opened:
        with pytest.raises(ValueError, match="has no time zone"):
            opened.messages("G_Orders", since=datetime(2026, 11, 21))  # noqa: DTZ001 - the mistake
        with pytest.raises(ValueError, match="name the queue"):
            opened.messages("G_Orders", offset=3)
        with pytest.raises(ValueError, match="SQL92"):
            opened.messages("G_Orders", tags="a > 3")
        with pytest.raises(ValueError, match="messages_max is negative: -1"):
            opened.messages("G_Orders", messages_max=-1)
        with pytest.raises(tieredstore.NotFound, match="did you mean G_Orders"):
            opened.messages("G_Order")


async def test_the_command_prints_the_same_messages(tier: Path, tree: GoldenTree) -> None:
    rows = run(*settings(tree, tier), "read", "G_Keys", "0", "--json").rows
    async with tieredstore.open(tier) as opened:
        found = [
            message_row(message, digest=False) async for message in opened.messages("G_Keys", 0)
        ]
    assert found == rows


async def test_one_fetch_answers_with_rocketmqs_status(tier: Path) -> None:
    async with tieredstore.open(tier) as opened:
        result = await opened.get_message("group", "G_Orders", 0, 17)
        assert result.status is tieredstore.FetchStatus.FOUND
        assert len(result.messages) == 32
        assert result.next_offset == 49
        unknown = await opened.get_message("group", "G_None", 0, 0)
        assert unknown.status is tieredstore.FetchStatus.NO_MATCHED_LOGIC_QUEUE
        assert opened.statistics().runs_read > 0


async def test_an_unknown_topic_or_queue_names_the_nearest(tier: Path) -> None:
    async with tieredstore.open(tier) as opened:
        with pytest.raises(tieredstore.NotFound, match="did you mean G_Orders"):
            opened.messages("G_Order", 0)
        with pytest.raises(
            tieredstore.NotFound, match="nothing of G_Orders/9; the topic has queue"
        ):
            opened.queue("G_Orders", 9)
        with pytest.raises(tieredstore.NotFound, match="nothing of Z; there are G_Batch, "):
            opened.queues("Z")
        with pytest.raises(tieredstore.NotFound, match="past the end, 600"):
            await anext(opened.messages("G_Orders", 0, 601))
        assert [message async for message in opened.messages("G_Orders", 0, 600)] == []


async def test_an_iteration_that_is_left_early_leaves_nothing_behind(tier: Path) -> None:
    async with tieredstore.open(tier) as opened:
        async for message in opened.messages("G_Orders", 0):
            assert message.offset == 0
            break
        messages = opened.messages("G_Orders", 1)
        await anext(messages)
    with pytest.raises(tieredstore.Closed):
        opened.queues()
    with pytest.raises(tieredstore.Closed):
        await opened.get_message("group", "G_Orders", 0, 0)


async def test_a_tier_that_is_open_is_not_entered_again(tier: Path) -> None:
    async with tieredstore.open(tier) as opened:
        with pytest.raises(RuntimeError, match="is open already"):
            await opened.__aenter__()
        assert opened.queues()


@pytest.mark.leaves_findings(
    "entry-damaged", "journal", "checksum", "body-crc", why="an entry is cut"
)
async def test_check_tells_what_is_wrong_also_behind_a_damaged_journal(
    tree: GoldenTree, tmp_path: Path
) -> None:
    given = [*settings(tree, tmp_path), "-D", "tieredStoreGroupCommitCount=10"]
    run(*given, "tier", tree.store)
    async with tieredstore.open(tmp_path) as opened:
        assert [finding async for finding in opened.check()] == []
    last = below(tmp_path, "*/*/@journal/*")[-1]
    last.write_bytes(last.read_bytes()[:50])  # not only its copy of the one before
    with pytest.raises(tieredstore.Corrupt):
        async with tieredstore.open(tmp_path):
            pass
    async with tieredstore.open(tmp_path, damaged=True) as opened:
        kinds = {finding.finding async for finding in opened.check()}
    assert {"journal", "entry-damaged"} <= kinds


async def test_a_tier_that_is_dropped_open_warns(tier: Path) -> None:
    opened = tieredstore.open(tier)
    await opened.__aenter__()
    stack = opened._stack
    assert stack is not None
    with pytest.warns(ResourceWarning, match="ReadableTier.*was not closed"):
        opened.__del__()
    await opened.__aexit__(None, None, None)
    del opened
    gc.collect()
