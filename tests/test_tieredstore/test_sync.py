"""`tieredstore.sync`: the same face without `await`, in a thread of its own."""

import asyncio
import gc
import inspect
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from container.names.queue_id import QueueId
from tests.support.fake_broker import FakeBroker
from tests.support.golden import ROCKETMQ_533, expected, unpacked
from tests.support.patience import communicated
from tieredstore import sync
from tieredstore.store.protocol import MessageStore

THREAD = "tieredstore"


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD)]


@pytest.fixture(autouse=True)
def every_thread_ends() -> object:
    """Those begun here: stores of offline jobs live as long as their process."""
    before = set(threads())
    yield
    assert set(threads()) <= before


def test_a_program_that_reads_loads_nothing_that_writes() -> None:
    program = """if True:
        import sys, tieredstore.sync
        writing = ("dispatcher.dispatcher", "tieredstore.follower", "tieredstore.store")
        print(*(name for name in writing if name in sys.modules))
        print(tieredstore.sync.SyncStore.__name__, *(name in sys.modules for name in writing))
    """
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == ["", "SyncStore True True True"]
    with pytest.raises(AttributeError, match=r"'tieredstore\.sync' has no attribute 'SyncTopic'"):
        _ = sync.SyncTopic  # type: ignore[attr-defined]


def test_it_reads_what_the_asynchronous_face_reads(golden_tier: Path) -> None:
    async def read() -> tuple[list[tieredstore.Message], list[tieredstore.QueueSummary]]:
        async with tieredstore.open(golden_tier) as opened:
            return [message async for message in opened.messages("G_Orders", 0)], opened.queues()

    messages, queues = asyncio.run(read())
    with sync.open(golden_tier) as opened:
        assert (opened.cluster, opened.broker) == ("GoldenCluster", "golden-a")
        assert opened.queues() == queues
        assert opened.topics() == sorted({queue.topic for queue in queues})
        assert opened.queue("G_Orders", 0) in opened.queues("G_Orders")
        assert list(opened.messages("G_Orders", 0)) == messages
        assert list(opened.messages("G_Orders", 0, 17, messages_max=3)) == messages[17:20]
        tagged = opened.messages("G_Orders", 0, tags="TagA")
        assert list(tagged) == [one for one in messages if one.tags == "TagA"]
        assert opened.get_message("group", "G_Orders", 0, 17).next_offset == 49
        assert opened.statistics().runs_read > 0
        assert opened.refresh() is False
        assert opened.check() == []


@pytest.mark.process
def test_it_works_where_a_loop_runs_in_the_same_thread_as_in_jupyter(golden_tier: Path) -> None:
    program = f"""
import asyncio
import tieredstore.sync

async def cell():
    with tieredstore.sync.open({str(golden_tier)!r}) as tier:
        return len(list(tier.messages("G_Orders", 0)))

print(asyncio.run(cell()))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("600\n", "")


def test_errors_are_those_of_the_asynchronous_face(golden_tier: Path, tmp_path: Path) -> None:
    with pytest.raises(tieredstore.NotFound, match="no such directory"):
        sync.open(tmp_path / "nowhere")
    with pytest.raises(tieredstore.ConfigError, match="names no bucket"):
        sync.open("s3://")
    with sync.open(golden_tier) as opened:
        with pytest.raises(tieredstore.NotFound, match="did you mean G_Orders"):
            opened.messages("G_Order", 0)
        with pytest.raises(ValueError, match="no tag"):
            list(opened.messages("G_Orders", 0, tags="||"))


def test_a_loop_that_is_left_early_and_a_block_that_fails_close_cleanly(golden_tier: Path) -> None:
    with sync.open(golden_tier) as opened:
        for message in opened.messages("G_Orders", 0):
            assert message.offset == 0
            break
        left = opened.messages("G_Orders", 1)
        next(left)
    del left
    gc.collect()

    def fail() -> None:
        with sync.open(golden_tier) as opened:
            next(opened.messages("G_Orders", 0))
            raise KeyError("the caller's own")

    with pytest.raises(KeyError, match="the caller's own"):
        fail()


def test_without_a_block_it_is_closed_by_a_call_and_warns_when_it_is_dropped(
    golden_tier: Path,
) -> None:
    opened = sync.open(golden_tier)
    assert opened.topics()
    with pytest.warns(ResourceWarning, match="SyncTier.*was not closed"):
        opened.__del__()
    opened.close()
    opened.close()
    with pytest.raises(tieredstore.Closed, match="it was closed"):
        opened.topics()


@pytest.mark.process
def test_a_program_that_closes_nothing_ends_all_the_same(golden_tier: Path) -> None:
    program = f"""
import tieredstore.sync

tier = tieredstore.sync.open({str(golden_tier)!r})
print(len(list(tier.messages("G_Orders", 0))))
"""
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "600\n"
    assert "was not closed" in done.stderr


FORKS = """
import os, sys
from tieredstore import Closed, NewMessage, sync

with sync.open_store(sys.argv[1] + "/store", sys.argv[1] + "/tier", broker="b") as store:
    message = NewMessage("T", 0, b"body")
    assert store.put_message(message).queue_offset == 0
    child = os.fork()
    if child == 0:
        for call in (lambda: store.put_message(message), lambda: store.max_offset("T", 0)):
            try:
                call()
            except Closed as error:
                print(error, flush=True)
        store.close()
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(store.put_message(message).queue_offset)
"""


@pytest.mark.process
def test_a_forked_child_is_refused_and_leaves_the_store_to_its_parent(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", FORKS, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    refused = "opened it before a fork: open it in each process"
    *said, status, offset = ended.stdout.splitlines()
    assert len(said) == 2
    assert all(refused in line for line in said)
    assert (status, offset, ended.stderr) == ("7", "1", "")


def test_several_threads_may_read_at_once(golden_tier: Path) -> None:
    counts: list[int] = []
    with sync.open(golden_tier) as opened:

        def read() -> None:
            counts.append(len(list(opened.messages("G_Orders", 0))))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts == [600] * 4


@pytest.mark.process
def test_ctrl_c_in_a_waiting_call_closes_and_ends(tmp_path: Path) -> None:
    """Storage that never answers: the call waits for ever, until SIGINT comes."""
    broker = FakeBroker(tmp_path / "store")
    broker.put("A", 0, b"body")
    with sync.follow(broker.directory, tmp_path / "tier", broker="b") as follower:
        follower.drain()
    program = textwrap.dedent(
        f"""
        import asyncio, signal
        import tieredstore.sync
        from provider.posix.store import PosixStore

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it for us

        async def read_many(self, wanted):
            print("waiting", flush=True)
            await asyncio.get_running_loop().create_future()

        with tieredstore.sync.open({str(tmp_path / "tier")!r}) as tier:
            PosixStore.read = PosixStore.read_many = read_many
            try:
                list(tier.messages("A", 0))
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        print("closed", flush=True)
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = communicated(process)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out.split(), err) == (0, ["interrupted", "closed"], "")


def test_a_store_is_tiered_without_await(tmp_path: Path) -> None:
    tree = unpacked(ROCKETMQ_533)
    wanted = len(expected(ROCKETMQ_533, "messages"))
    with sync.follow(tree.store, tmp_path, conf=ROCKETMQ_533.broker_conf) as follower:
        assert follower.drain().messages == wanted
        assert follower.statistics().behind == 0
        assert sum(topic.messages for topic in follower.topics()) == wanted
    with sync.open(tmp_path) as opened:
        assert opened.check() == []


def test_a_store_is_put_to_and_read_without_await(tmp_path: Path) -> None:
    with sync.open_store(tmp_path / "store", tmp_path / "tier", broker="b") as store:
        message = tieredstore.NewMessage("Orders", 0, b"first", {"KEYS": "k", "TAGS": "a"})
        placed = store.put_message(message)
        store.put_messages([message._replace(body=b"second"), message._replace(body=b"third")])
        assert (store.min_offset("Orders", 0), store.max_offset("Orders", 0)) == (0, 3)
        result = store.get_message("g", "Orders", 0, 1, messages_max=1)
        assert [one.body for one in result.messages] == [b"second"]
        assert store.offset_by_time("Orders", 0, placed.store_timestamp) == 0
        late_ms, upper = placed.store_timestamp + 10**9, tieredstore.Boundary.UPPER
        assert store.offset_by_time("Orders", 0, late_ms, upper) == 2
        assert store.offset_by_time("Orders", 0, late_ms, upper, tieredstore.TimeRules.TIERED) == 3
        assert len(store.query_message("Orders", "k", messages_max=5).messages) == 3
        assert store.wait_for_message("Orders", 0, 2, 0)
        assert not store.wait_for_message("Orders", 0, 3, 0.001)
        for read in store.messages("g", "Orders", 0, 2):
            assert read.body == b"third"
            break
        store.set_level("FORCE")
        assert store.statistics()["level"] == tieredstore.Level.FORCE
    with pytest.raises(tieredstore.Closed):
        store.max_offset("Orders", 0)
    with sync.open(tmp_path / "tier") as tier:
        assert tier.queue("Orders", 0).max_offset == 3


def test_a_call_of_a_store_takes_what_the_asynchronous_one_takes() -> None:
    for name, call in vars(MessageStore).items():
        if name.startswith("_") or not callable(call):
            continue
        taken = inspect.signature(getattr(sync.SyncStore, name)).parameters
        if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in taken.values()):
            assert set(inspect.signature(call).parameters) == set(taken), name


@pytest.mark.parametrize("name", ["open", "follow", "open_store"])
def test_opening_has_the_arguments_of_the_asynchronous_one(name: str) -> None:
    theirs, ours = (inspect.signature(getattr(face, name)) for face in (tieredstore, sync))
    assert ours.parameters.keys() == theirs.parameters.keys()
    for parameter in ours.parameters.values():
        assert parameter.default == theirs.parameters[parameter.name].default
        assert parameter.annotation is not Any


def test_a_durable_store_syncs_each_append(tmp_path: Path) -> None:
    rarely = tieredstore.HotWriteOptions(flush_interval_s=3600)
    rare = {"flushIntervalCommitLog": 3_600_000, "tieredStorageLevel": 0}

    async def durable_end(where: str, **given: Any) -> int:
        store = tieredstore.open_store(tmp_path / where, broker="b", settings=rare, **given)
        assert isinstance(store, tieredstore.TieredMessageStore)
        async with store:
            await store.put_message(tieredstore.NewMessage("Orders", 0, b"body"))
            log = store._local.log
            return log.durable_offset(QueueId("Orders", 0))

    assert asyncio.run(durable_end("lazy")) == 0
    assert asyncio.run(durable_end("set", durable=True)) == 1
    assert asyncio.run(durable_end("set with options", durable=True, hot=rarely)) == 1
    for face in (tieredstore, sync):
        first_paragraph = (inspect.getdoc(face.open_store) or "").split("\n\n")[1]
        assert "power failure" in first_paragraph
        assert "durable=True" in first_paragraph


def test_a_topic_is_read_and_its_position_kept_without_await(tmp_path: Path) -> None:
    with sync.open_store(tmp_path / "store", broker="b", level="DISABLE") as store:
        for number in range(3):
            assert store.append("Orders", str(number), tags="a").offset == number
        assert [one.body for one in store.read("Orders")] == [b"0", b"1", b"2"]
        position = store.position("mailer", "Orders")
        first = next(position.messages(tags="a"))
        position.acknowledge(first)
        assert position.offsets() == {0: 1}
        assert [one.body for one in position.messages()] == [b"1", b"2"]
        assert next(store.read("Orders", follow=True)).body == b"0"


def test_a_store_has_every_call_of_the_asynchronous_one(tmp_path: Path) -> None:
    theirs = (*vars(MessageStore), "commit_offset", "level", "set_level")
    public = {name for name in theirs if not name.startswith("_")}
    assert public <= set(dir(sync.SyncStore))
    with sync.open_store(tmp_path / "store", tmp_path / "tier", broker="b") as store:
        message = tieredstore.NewMessage("Orders", 1, b"body", {"KEYS": "k"})
        time_ms = store.put_message(message).store_timestamp
        assert store.message_store_time("Orders", 1, 0) == time_ms
        assert store.earliest_message_time("Orders", 1) == time_ms
        assert store.queue_ids("Orders") == [1]
        assert store.is_in_store("Orders", 1, 0)
        assert store.is_in_memory("Orders", 1, 0)
        assert store.commit_offset("Orders", 1) in (0, 1)
        assert store.level is tieredstore.Level.NOT_IN_DISK
        store.set_level("FORCE")
        assert store.level is tieredstore.Level.FORCE
