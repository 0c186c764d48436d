"""`tier --follow` over an S3 that differs from AWS, at its start and while it runs.

A command runs in this thread, for it takes signals; what happens to it is directed from another.
"""

import asyncio
import copy
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from container.names.queue_id import QueueId
from tests.support.fake_broker import FakeBroker
from tests.support.http import free_port, get, value_of
from tests.support.odd_s3 import OddS3, Refusal
from tests.support.patience import Patience, wait_until
from tieredstore import NewMessage, open_store
from tieredstore.cli.main import cli

QUEUE = QueueId("Orders", 0)
MESSAGES = "rocketmq_tiered_store_messages_dispatch_total{"
QUICK = {
    "brokerClusterName": "C",
    "brokerName": "broker-a",
    "tieredStoreGroupCommitTimeout": 20,
    "tieredStorePollInterval": 20,
    "tieredStoreShutdownTimeout": 300,
}


class Following:
    """A broker, a server, and `tier --follow` between them, which `directed` runs."""

    def __init__(self, server: OddS3, broker: FakeBroker) -> None:
        self.server, self.broker, self.port = server, broker, free_port()
        self.tiered = self.before = 0
        """Messages in the tier, and how many of them there were when the command began."""

    def put(self) -> None:
        self.broker.put("Orders", 0, b"%d" % self.broker.next_offsets[QUEUE])

    def page(self, path: str, status: int, words: str = "") -> str:
        """The first answer with this status and these words."""
        answer = (0, "")

        def has_come() -> bool:
            nonlocal answer
            answer = get(self.port, path)
            return answer[0] == status and words in answer[1]

        wait_until(has_come, Patience(lambda: f"{path}: {answer}", marks=lambda: answer))
        return answer[1]

    def become(self, odd: dict[str, Any]) -> dict[str, Any]:
        """Have the server differ in these respects; what it was in them."""
        usual = {name: getattr(self.server.odd, name) for name in odd}
        for name, value in odd.items():
            setattr(self.server.odd, name, copy.deepcopy(value))
        return usual

    def invoke(self) -> Result:
        given = {**QUICK, "tieredStoreMetricsPort": self.port}
        words = [word for key, value in given.items() for word in ("-D", f"{key}={value}")]
        where = ["--tier", "s3://odd/t", *words, "tier", "--follow", str(self.broker.directory)]
        return CliRunner().invoke(cli, where)

    def directed(self, play: Callable[[], None]) -> Result:
        """The end of the command, which is stopped where the play ends."""

        self.before = self.tiered

        def director() -> None:
            self.page("/healthz", 200)
            try:
                play()
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        with ThreadPoolExecutor(1) as threads:
            played = threads.submit(director)
            ended = self.invoke()
            played.result()
        return ended

    def tiers_all(self) -> None:
        """Wait until everything that was put is in the tier, and all is well."""
        wanted = self.broker.next_offsets[QUEUE]

        def count() -> float:
            return self.before + value_of(get(self.port, "/metrics")[1], MESSAGES)

        wait_until(lambda: count() >= wanted, Patience(f"not {wanted} messages", marks=count))
        self.page("/readyz", 200)
        self.tiered = wanted


@pytest.fixture
def following(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with OddS3() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        broker = FakeBroker(tmp_path / "store")
        broker.put("Orders", 0, b"0")
        yield Following(server, broker)


def assert_whole(following: Following) -> None:
    """Everything that was put is in the tier, once and in order, and nothing is wrong."""
    count = following.broker.next_offsets[QUEUE]
    read = CliRunner().invoke(cli, ["--tier", "s3://odd/t", "read", "Orders", "0", "--json"])
    assert [json.loads(line)["body"] for line in read.stdout.splitlines()] == [
        str(number) for number in range(count)
    ]
    check = CliRunner().invoke(cli, ["--tier", "s3://odd/t", "check"])
    assert check.exit_code == 0, check.output


def assert_plays_well(following: Following, play: Callable[[], None]) -> None:
    """The command ends well behind the play, and left everything whole."""
    ended = following.directed(play)
    assert ended.exit_code == 0, ended.output
    assert_whole(following)


def refusal(status: int, code: str = "", **more: Any) -> dict[str, Any]:
    return {"refusals": [Refusal(status=status, code=code, **more)]}


PASSING: dict[str, tuple[dict[str, Any], str]] = {
    "clock": (refusal(403, "RequestTimeTooSkewed"), "clock"),
    "token": (refusal(400, "ExpiredToken"), "token"),
    "permission": (refusal(403, "AccessDenied"), "s3:"),
    "key": (refusal(403, "InvalidAccessKeyId"), "access key"),
    "secret": (refusal(403, "SignatureDoesNotMatch"), "AWS_SECRET_ACCESS_KEY"),
    "unauthorized": (refusal(401), "s3:"),
    "payer": ({"requester_pays": True}, "objectStoreRequesterPays"),
    "asked again": (refusal(400, "RequestTimeout"), "again"),
    "conflict": (refusal(409, "OperationAborted"), "again"),
    "trouble": (refusal(507), "507"),
}
"""What differs, and what is said of it. A start waits for what another may cure."""
LASTING: dict[str, tuple[dict[str, Any], str]] = {
    "region": ({"region": "eu-west-3"}, "AWS_REGION"),
    "region, by a redirection": ({"region": "eu-west-3", "redirects": True}, "AWS_REGION"),
    "bucket": (refusal(404, "NoSuchBucket"), "bucket"),
    "checksum": ({"checksum_status": 400}, "objectStoreUploadChecksum=NONE"),
    "checksum, unknown": ({"checksum_status": 501}, "objectStoreUploadChecksum=NONE"),
    "addressing": ({"virtual_host": "s3.test"}, "objectStoreAddressing=VIRTUAL"),
    "method": (refusal(405, "MethodNotAllowed"), "objectStoreEndpoint"),
    "tag": ({"e_tags": False}, "ETag"),
}
"""A start ends at once. A command that runs waits: somebody has changed the service."""
OF_WRITES: dict[str, tuple[dict[str, Any], str]] = {
    "writes": (refusal(403, "AccessDenied", methods="PUT"), "s3:PutObject"),
    "replies": (refusal(500, "InternalError", methods="PUT", acts=True), "500"),
    "listings": (refusal(403, "AccessDenied", path="list-type"), "s3:ListBucket"),
}
"""An entry counts once the journal is listed behind it."""


OF_OTHERS: dict[str, dict[str, Any]] = {
    "objects": refusal(403, "AccessDenied", methods="GET", path=r"^/odd/t/[^?]*$"),
    "deletions": refusal(403, "AccessDenied", methods="POST DELETE"),
    "locked objects": {"undeletable": "."},
    "race": {"race_s": 0.03},
    "condition": {"ignores_condition": True},
    "ranges": {"ranges": False},
    "token of no page": {"tokens": "missing", "page_max": 1},
    "repeated token": {"tokens": "repeated", "page_max": 1},
    "circle": {"tokens": "circle", "page_max": 1},
    "small pages": {"empty_pages": True, "page_max": 2},
    "no bulk deletion": {"bulk_delete": False},
    "delay": {"delay_s": 0.02},
}
"""What the writes of one owner do not meet."""


BY_DAY = {"permission", "trouble", "region", "deletions", *OF_WRITES}


def some_by_day(*names: str) -> pytest.MarkDecorator:
    """All by night: whether a refusal passes decides what becomes of a command, not its reason."""
    nightly = [pytest.mark.nightly]
    given = [pytest.param(one, marks=[] if one in BY_DAY else nightly) for one in names]
    return pytest.mark.parametrize("name", given)


@pytest.mark.slow
@some_by_day(*PASSING, *LASTING, *OF_WRITES)
def test_a_service_that_begins_to_refuse_is_told_at_once_and_waited_out(
    following: Following, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd, cure = {**PASSING, **LASTING, **OF_WRITES}[name]

    def is_outage(line: str) -> bool:
        return line.startswith("nothing reaches the tier at present: ") and cure in line

    def play() -> None:
        following.tiers_all()
        usual = following.become(odd)
        following.put()
        said = following.page("/readyz", 503, "nothing reaches the tier")
        assert cure in said
        wait_until(lambda: any(map(is_outage, caplog.messages)), Patience("it is not logged"))
        assert value_of(get(following.port, "/metrics")[1], "tieredstore_outage{") == 1
        following.become(usual)
        following.put()
        following.tiers_all()

    assert_plays_well(following, play)


@pytest.mark.slow
@some_by_day(*OF_OTHERS)
def test_what_writes_do_not_meet_holds_no_message_up(following: Following, name: str) -> None:
    def play() -> None:
        following.tiers_all()
        usual = following.become(OF_OTHERS[name])
        for _ in range(3):
            following.put()
            following.tiers_all()
        following.become(usual)
        following.put()
        following.tiers_all()

    assert_plays_well(following, play)


@pytest.mark.slow
@some_by_day(*PASSING, *LASTING, *OF_WRITES)
async def test_a_store_of_our_own_takes_puts_while_a_service_refuses(
    following: Following, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd, cure = {**PASSING, **LASTING, **OF_WRITES}[name]

    async def until(has_come: Callable[[], Awaitable[bool]]) -> None:
        patience = Patience(f"{name}: {caplog.messages}", marks=lambda: len(caplog.messages))
        while not await has_come():
            patience.look()
            await asyncio.sleep(0.02)

    async def put(*numbers: int) -> None:
        for number in numbers:
            appended = await store.put_message(NewMessage("Orders", 0, b"%d" % number))
            assert appended.queue_offset == number

    async def is_tiered() -> bool:
        return await store.commit_offset("Orders", 0) == await store.max_offset("Orders", 0)

    async def is_told() -> bool:
        told = "nothing reaches the tier at present: "
        return any(line.startswith(told) and cure in line for line in caplog.messages)

    settings = {key: value for key, value in QUICK.items() if key.startswith("tiered")}
    async with open_store(
        tmp_path / "own", "s3://odd/t", cluster="C", broker="broker-a", settings=settings
    ) as store:
        await put(0, 1)
        await until(is_tiered)
        usual = following.become(odd)
        await put(2, 3)
        await until(is_told)
        found = await store.get_message("g", "Orders", 0, 0)
        assert [one.body for one in found.messages] == [b"0", b"1", b"2", b"3"]
        following.become(usual)
        await put(4)
        await until(is_tiered)
    following.broker.next_offsets[QUEUE] = 5
    await asyncio.to_thread(assert_whole, following)


@pytest.mark.slow
@some_by_day(*PASSING)
def test_a_start_that_waits_is_not_ready_and_says_why(
    following: Following, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    odd, cure = PASSING[name]
    usual = following.become(odd)

    def play() -> None:
        said = following.page("/readyz", 503, cure)
        assert said.startswith("the tier is being opened: ")
        assert following.page("/metrics", 503, cure) == said
        following.page("/healthz", 200)
        assert "not ready: " in caplog.text
        following.become(usual)
        following.tiers_all()

    assert_plays_well(following, play)


@pytest.mark.slow
@some_by_day(*LASTING)
def test_a_start_that_no_waiting_helps_ends_at_once(following: Following, name: str) -> None:
    odd, cure = LASTING[name]
    usual = following.become(odd)
    ended = following.invoke()
    assert ended.exit_code == 2, ended.output
    assert cure in ended.stderr.splitlines()[-1]
    following.become(usual)
    assert following.directed(following.tiers_all).exit_code == 0
    assert_whole(following)


@pytest.mark.slow
def test_a_stop_while_the_service_refuses_ends_with_3_and_the_next_start_goes_on(
    following: Following,
) -> None:
    def play() -> None:
        following.tiers_all()
        following.become(refusal(403, "AccessDenied"))
        following.put()
        following.page("/readyz", 503, "nothing reaches the tier")

    ended = following.directed(play)
    assert ended.exit_code == 3, ended.output
    assert "1 message of 1 queue are not in the tier" in ended.stderr.splitlines()[-1]
    following.become({"refusals": []})
    assert following.directed(following.tiers_all).exit_code == 0
    assert_whole(following)
