"""`tier` of several stores: one process, one page, and failures that leave the others alone."""

import asyncio
import json
import logging
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import tieredstore
from provider.clock import SystemClock
from provider.errors import Unavailable
from tests.support.cli import COMMAND, complaints, run
from tests.support.fake_broker import FakeBroker
from tests.support.http import free_port, get, value_of
from tests.support.patience import Patience, communicated, until, wait_until
from tieredstore.cli import several_stores
from tieredstore.cli.commands import tier
from tieredstore.cli.several_stores import StoreRun, follow_all
from tieredstore.config.effective import Config

assert tieredstore.Follower  # its imports read files, so they are not left to a running loop
NAMES = ("a", "b", "c")
OPTIONS = [word for name in NAMES for word in ("--broker", name)]


@pytest.fixture
def brokers(tmp_path: Path) -> list[FakeBroker]:
    """Three brokers of one host with a message each."""
    made = [FakeBroker(tmp_path / name, consume_queue_bytes=400) for name in NAMES]
    for broker in made:
        broker.put("T", 0, b"first")
    return made


def tier_of(tmp_path: Path) -> list[str]:
    return ["--tier", str(tmp_path / "tier"), "-D", "brokerClusterName=C"]


def config_of(tmp_path: Path, name: str, **settings: object) -> Config:
    given = {"tieredStoreTakeoverTimeout": 0, "tieredStorePollInterval": 1, **settings}
    return Config.named(tmp_path / "tier", "C", name, None, given).serving()


def runs_of(brokers: list[FakeBroker], **settings: object) -> list[StoreRun]:
    return [
        StoreRun(
            config_of(one.directory.parent, name, **settings),
            one.directory, clock=SystemClock(), take_over=False,
        )
        for name, one in zip(NAMES, brokers, strict=True)
    ]  # fmt: skip


def next_offsets(tmp_path: Path) -> dict[str, int]:
    rows = run(*tier_of(tmp_path), "topics", "--broker", "*", "--json").rows
    return {row["broker"]: row["commit_offset"] for row in rows}


async def eventually(is_so: Callable[[], bool]) -> None:
    await until(is_so, Patience("the followers do not get there", pids=[os.getpid()]))


async def test_one_of_three_stores_is_missing_and_one_tier_is_another_process_s(
    brokers: list[FakeBroker], tmp_path: Path
) -> None:
    (tmp_path / "c").rename(tmp_path / "away")
    stores = [one.directory for one in brokers]
    owner = tieredstore.follow(stores[1], tmp_path / "tier", broker="b", cluster="C")
    async with owner:
        command = [*tier_of(tmp_path), "tier", *map(str, stores), *OPTIONS, "--json"]
        done = run(*command, "-D", "tieredStoreTakeoverTimeout=0", status=4)
    assert [(row["broker"], row["cluster"], row["messages_new"]) for row in done.rows] == [
        ("a", "C", 1)
    ]
    said = [line.split("ERROR   ")[1] for line in done.err.splitlines() if "ERROR" in line]
    assert [line.partition("not tiered: ")[0] for line in said] == ["b: ", "c: "]
    assert "owns" in said[0]
    assert "no such directory" in said[1]
    (tmp_path / "away").rename(tmp_path / "c")
    done = run(*command, "--log-format", "json")
    assert [row["messages_new"] for row in done.rows] == [0, 1, 1]
    logged = [json.loads(line) for line in done.err.splitlines()]
    assert {row["broker"] for row in logged} == set(NAMES)
    run(*tier_of(tmp_path), "check", "--broker", "*")


async def test_followers_of_one_process_fail_apart_and_share_a_page(
    brokers: list[FakeBroker], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    runs = runs_of(brokers, tieredStoreMetricsPort=port)
    owner = tieredstore.follow(brokers[1].directory, tmp_path / "tier", broker="b", cluster="C")

    async def page(path: str) -> tuple[int, str]:
        return await asyncio.to_thread(get, port, path)

    def is_tiered(number: int, messages: int) -> bool:
        follower = runs[number]._follower
        return follower is not None and sum(one.messages for one in follower.topics()) == messages

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(owner)
        task = asyncio.create_task(follow_all(runs, SystemClock()))
        await eventually(lambda: runs[1].status == 4)
        await eventually(lambda: not (runs[0].unready_reason() or runs[2].unready_reason()))
        brokers[2].put("T", 0, b"second")
        await eventually(lambda: is_tiered(0, 1) and is_tiered(2, 2))
        status, reason = await page("/readyz")
        assert (status, reason.startswith("b of cluster C: ")) == (503, True)
        assert (await page("/healthz"))[0] == 200
        _, text = await page("/metrics")
        assert text.count("# HELP tieredstore_owner ") == 1
        assert value_of(text, "tieredstore_owner{") == 2
        assert value_of(text, 'tieredstore_build_info{cluster="C",node_id="b"') == 1
        signal.raise_signal(signal.SIGTERM)
        await task
    assert [one.status for one in runs] == [0, 4, 0]
    assert [one.outcome is not None for one in runs] == [True, False, True]
    (said,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "not tiered: " in said.getMessage()
    assert "tried again" not in said.getMessage()


async def test_a_store_whose_tier_was_away_is_followed_when_it_is_back(
    brokers: list[FakeBroker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several_stores, "RETRY_S", 0.01)
    runs = runs_of(brokers)
    starts: list[StoreRun] = []
    follow = StoreRun._follow

    async def fail_twice(one: StoreRun, stop: asyncio.Event) -> None:
        starts.append(one)
        if one is runs[0] and starts.count(one) <= 2:
            raise Unavailable("away", "tier")
        await follow(one, stop)

    monkeypatch.setattr(StoreRun, "_follow", fail_twice)
    task = asyncio.create_task(follow_all(runs, SystemClock()))
    await eventually(lambda: starts.count(runs[0]) == 3)
    await eventually(lambda: not any(one.unready_reason() for one in runs))
    signal.raise_signal(signal.SIGTERM)
    await task
    assert [one.status for one in runs] == [0, 0, 0]
    assert [starts.count(one) for one in runs] == [3, 1, 1]


async def test_a_signal_ends_a_start_that_waits_and_commits_the_others(
    brokers: list[FakeBroker], tmp_path: Path
) -> None:
    runs = runs_of(brokers)
    start = replace(runs[1].config.start, stands_by=True)
    runs[1].config = replace(runs[1].config, start=start)
    owner = tieredstore.follow(brokers[1].directory, tmp_path / "tier", broker="b", cluster="C")
    async with owner:
        task = asyncio.create_task(follow_all(runs, SystemClock()))
        await eventually(lambda: not (runs[0].unready_reason() or runs[2].unready_reason()))
        assert "opened" in runs[1].unready_reason()
        signal.raise_signal(signal.SIGTERM)
        await task
    assert [one.outcome is not None for one in runs] == [True, False, True]


async def test_a_signal_ends_a_standby_at_once(
    brokers: list[FakeBroker], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    where = tmp_path / "tier"
    config = config_of(tmp_path, "a")
    config = replace(config, start=replace(config.start, stands_by=True))
    async with tieredstore.follow(brokers[0].directory, where, broker="a", cluster="C"):
        second = tieredstore.Follower(lambda: config, brokers[0].directory, serves=False)
        task = asyncio.create_task(tier._follow(second, config, (), is_live=False))
        await eventually(lambda: any("standing by" in one.getMessage() for one in caplog.records))
        signal.raise_signal(signal.SIGTERM)
        ended = await task
    assert (ended.topics, ended.status) == ([], 0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "b"], "give --broker NAME --broker NAME in the order of the stores"),
        (["a", "b", "--broker", "a"], "2 stores and 1 names"),
        (["a", "b", "--broker", "x", "--broker", "x"], "would have one tier, "),
        (
            [*("a", "b", "--broker", "x", "--broker", "y"), "-D", "tieredStorePinPath=/pins"],
            "tieredStorePinPath is the same for several stores",
        ),
        (["a", "--broker", "a"], "--broker is for several stores"),
        (["a.conf", "b.conf", "--conf", "a.conf"], "--conf is one more"),
        (["a.conf", "b.conf", "-D", "brokerName=x"], "would have one tier, "),
    ],
)
def test_stores_that_are_not_told_apart_are_refused(
    brokers: list[FakeBroker], tmp_path: Path, words: list[str], said: str
) -> None:
    files_of(brokers)
    given = [str(tmp_path / one) if (tmp_path / one).exists() else one for one in words]
    done = run(*tier_of(tmp_path), "tier", *given, status=2)
    assert said in done.err
    assert not (tmp_path / "tier").exists()


def files_of(brokers: list[FakeBroker]) -> list[Path]:
    files = [one.directory.with_suffix(".conf") for one in brokers]
    for file, broker in zip(files, brokers, strict=True):
        file.write_text(f"brokerName={file.stem}\nstorePathRootDir={broker.directory}\n")
    return files


def test_configuration_files_name_stores_and_brokers(
    brokers: list[FakeBroker], tmp_path: Path
) -> None:
    done = run(*tier_of(tmp_path), "tier", *files_of(brokers))
    assert [line.split()[:2] for line in done.out.splitlines() if " T " in line] == [
        ["C", name] for name in NAMES
    ]
    assert next_offsets(tmp_path) == dict.fromkeys(NAMES, 1)


@pytest.mark.process
@pytest.mark.slow
def test_a_killed_process_continues_all_its_stores(
    brokers: list[FakeBroker], tmp_path: Path
) -> None:
    stores = [str(one.directory) for one in brokers]
    command = [*COMMAND, *tier_of(tmp_path), "tier", "--follow", *stores, *OPTIONS]
    (tmp_path / "tier").mkdir()

    def ended(number: signal.Signals, messages: int) -> tuple[int, str]:
        """Status and complaints of a process that tiered so many messages of each store."""
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

        def is_tiered() -> bool:
            rows = run(*tier_of(tmp_path), "topics", "--broker", "*", "--json", status=None).rows
            return [row["commit_offset"] for row in rows] == [messages] * 3

        wait_until(is_tiered, Patience("nothing is tiered", pids=[process.pid]))
        process.send_signal(number)
        _, err = communicated(process)
        return process.returncode, complaints(err)

    assert ended(signal.SIGKILL, 1)[0] == -signal.SIGKILL
    for one in brokers:
        one.put("T", 0, b"next")
    assert ended(signal.SIGTERM, 2) == (0, "")
    run(*tier_of(tmp_path), "check", "--broker", "*")
