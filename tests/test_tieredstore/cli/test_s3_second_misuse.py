"""A directory as first store, S3 as second: what goes wrong over there is one sentence.

Nothing of what was tiered is lost by it.
"""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tieredstore
from container.names.tier_objects import OWNER_PREFIX
from provider.errors import Denied
from tests.support.cli import complaints
from tests.support.fake_broker import FakeBroker
from tests.support.fault_proxy import FaultProxy, Kind, WireFault
from tests.support.patience import Patience, until
from tests.support.seaweedfs import SeaweedFs
from tests.test_tieredstore.cli.test_s3_misuse import NAMED, WRONG_SECRET, proxy
from tests.test_tieredstore.cli.test_s3_misuse import refused as refusal
from tieredstore.cli.main import cli

__all__ = ["proxy"]  # a fixture
BODIES = list("0123456789")
FIRST_SEGMENT = "cfcd208400000000000000000000"
pytestmark = pytest.mark.usefixtures("s3_retries_at_once")
FINDINGS = pytest.mark.leaves_findings(
    "journal", why="the second store is on S3, which the fixture lacks"
)


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, [*NAMED, *map(str, words)])


def good(*words: str | Path) -> str:
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    return done.stdout


def refused(*words: str | Path, status: int = 2) -> str:
    """The one sentence of a refusal."""
    return refusal(invoke(*words), status)


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path / "store")
    for body in BODIES:
        broker.put("Orders", 0, body.encode())
    return broker


class Tier:
    """A tier of ten messages in a directory, and a second store on S3 behind a proxy."""

    def __init__(self, directory: Path, url: str, proxy: FaultProxy, broker: FakeBroker) -> None:
        self.directory = directory
        self.url = url
        self.proxy = proxy
        self.broker = broker
        self.second = self.with_second(url)
        good(*self.first, "tier", broker.directory)

    @property
    def first(self) -> tuple[str | Path, ...]:
        """The options of one who knows the first store alone."""
        return ("--tier", self.directory)

    def settings(self, url: str) -> dict[str, object]:
        return {
            "tieredStoreOffloadPath": url,
            "tieredStoreOffloadDeletionLag": 0,
            "tieredStoreJournalGraceTime": 0,
            "objectStoreEndpoint": self.proxy.endpoint,
        }

    def with_second(self, url: str) -> tuple[str | Path, ...]:
        """The options of one whose second store is there, behind the proxy."""
        given = self.settings(url).items()
        return (*self.first, *(word for name, one in given for word in ("-D", f"{name}={one}")))

    def assert_first_is_whole(self) -> None:
        """Nothing was moved."""
        assert self.bodies(*self.first) == BODIES
        assert good(*self.first, "check").endswith("nothing is wrong\n")

    def assert_whole(self, expected: list[str] = BODIES) -> None:
        self.proxy.faults = ()
        assert self.bodies(*self.second) == expected
        for command in ("check", "scrub"):
            assert "nothing is wrong" in good(*self.second, command)

    def sources(self) -> int:
        """Files of segments in the first store."""
        return len([one for one in self.directory.glob("*/*/Orders/0/*/*") if one.is_file()])

    def bodies(self, *options: str | Path) -> list[str]:
        rows = good(*options, "read", "Orders", "0", "--json").splitlines()
        return [json.loads(line)["body"] for line in rows]


@pytest.fixture
def tier(tmp_path: Path, s3_url: str, proxy: FaultProxy, broker: FakeBroker) -> Tier:
    return Tier(tmp_path / "tier", s3_url, proxy, broker)


@pytest.fixture
def offloaded(tier: Tier) -> Tier:
    assert '"segments":2' in good(*tier.second, "offload", "Orders", "--json").replace(" ", "")
    return tier


def test_a_bucket_that_is_not_there(tier: Tier) -> None:
    wrong = tier.with_second("s3://no-such-bucket/tier")
    said = refused(*wrong, "offload", "Orders")
    assert "no-such-bucket" in said
    assert "does not exist" in said
    tier.assert_first_is_whole()


@FINDINGS
def test_another_bucket_than_before(offloaded: Tier, seaweed: SeaweedFs) -> None:
    other = f"s3://{seaweed.make_bucket('others')}/{offloaded.url.rpartition('/')[2]}"
    for place, why in ((other, "is not that of this tier"), ("s3://none/x", "does not exist")):
        wrong = offloaded.with_second(place)
        for words in (["read", "Orders"], ["check"], ["tier", offloaded.broker.directory]):
            assert why in refused(*wrong, *words), words
    offloaded.assert_whole()


@FINDINGS
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"AWS_SECRET_ACCESS_KEY": WRONG_SECRET}, "the secret key is wrong"),
        ({"AWS_ACCESS_KEY_ID": "nobody"}, "it knows no such access key"),
    ],
    ids=["secret", "key"],
)
def test_a_wrong_key(
    tier: Tier, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, str], why: str
) -> None:
    with monkeypatch.context() as environment:
        for name, value in wrong.items():
            environment.setenv(name, value)
        assert why in refused(*tier.second, "offload", "Orders")
    tier.assert_first_is_whole()
    good(*tier.second, "offload", "Orders")
    with monkeypatch.context() as environment:
        for name, value in wrong.items():
            environment.setenv(name, value)
        for words in (["read", "Orders"], ["tier", tier.broker.directory], ["offload", "Orders"]):
            assert why in refused(*tier.second, *words), words
    tier.assert_whole()


@FINDINGS
def test_a_clock_that_is_wrong(tier: Tier) -> None:
    tier.proxy.faults = [WireFault("skewed")]
    assert "this host's clock is wrong" in refused(*tier.second, "offload", "Orders")
    tier.assert_first_is_whole()
    tier.proxy.faults = []
    good(*tier.second, "offload", "Orders")
    tier.proxy.faults = [WireFault("skewed")]
    for words in (["read", "Orders"], ["tier", tier.broker.directory]):
        assert "this host's clock is wrong" in refused(*tier.second, *words), words
    tier.assert_whole()


def test_a_store_that_ignores_create_if_absent(tier: Tier) -> None:
    tier.proxy.faults = [WireFault("lies", "PUT")]
    said = refused(*tier.second, "offload", "Orders")
    assert "the storage ignores create-if-absent" in said
    tier.assert_first_is_whole()


NO_DELETIONS = [WireFault("denied", "DELETE"), WireFault("denied", "POST", r"\?delete")]


def test_no_permission_to_delete(tier: Tier) -> None:
    tier.proxy.faults = NO_DELETIONS
    said = refused(*tier.second, "offload", "Orders")
    assert "these credentials may not do this" in said
    assert "not deleted" in said
    tier.assert_first_is_whole()


STAY = "what was deleted stays in the storage until a later owner can delete it"


@pytest.mark.slow
@FINDINGS
@pytest.mark.parametrize("kind", ["denied", "reset"])
def test_deletions_there_wait_until_they_can_be_made(
    offloaded: Tier, seaweed: SeaweedFs, kind: Kind
) -> None:
    """All else goes on meanwhile."""
    tier = offloaded
    no_deletions = [WireFault(kind, "DELETE"), WireFault(kind, "POST", r"\?delete")]
    tier.broker.put("Orders", 0, b"more")
    tier.proxy.faults = no_deletions
    good(*tier.second, "tier", tier.broker.directory)
    tier.assert_whole([*BODIES, "more"])
    made = objects(seaweed, tier.url)
    tier.proxy.faults = no_deletions
    done = invoke(*tier.second, "delete-topic", "--tier-only", "Orders")
    assert done.exit_code == 0, done.output
    (said,) = complaints(done.stderr).splitlines()
    assert STAY in said
    assert objects(seaweed, tier.url) == made
    tier.proxy.faults = []
    good(*tier.second, "compact")
    assert [name.rpartition("/")[2] for name in objects(seaweed, tier.url)] == ["@store"]


AWAY = {
    "the probe": ("PUT", "%40probe"),
    "the mark": ("PUT", "%40store"),
    "the first copy": ("PUT", "COMMIT_LOG"),
    "the first verification": ("GET", "COMMIT_LOG"),
    "the second copy": ("PUT", "CONSUME_QUEUE"),
    "the second verification": ("GET", "CONSUME_QUEUE"),
}


@pytest.mark.slow
@FINDINGS
@pytest.mark.parametrize("what", AWAY)
def test_a_store_that_goes_away_amid_an_offload(tier: Tier, seaweed: SeaweedFs, what: str) -> None:
    method, path = AWAY[what]
    tier.proxy.faults = [WireFault("reset", method, path)]
    said = refused(*tier.second, "offload", "Orders", status=3)
    assert said.endswith("try again")
    assert tier.url in said
    tier.assert_whole()
    good(*tier.second, "offload", "Orders")
    tier.assert_whole()
    good(*tier.second, "compact")
    names = [name.rpartition("/")[2] for name in objects(seaweed, tier.url)]
    assert sorted(names) == ["@store", FIRST_SEGMENT, FIRST_SEGMENT]
    assert tier.sources() == 0


@pytest.mark.slow
@FINDINGS
def test_the_first_copy_stays_while_the_second_store_is_away(tier: Tier) -> None:
    """It may be the last one: it goes once the other store is seen again."""
    tier.proxy.faults = [WireFault("reset", "GET", "%40store")]
    good(*tier.second, "offload", "Orders")
    assert tier.proxy.struck["reset"]
    assert tier.sources() == 2
    tier.assert_whole()
    good(*tier.second, "compact")
    assert tier.sources() == 0
    tier.assert_whole()


@pytest.mark.slow
@FINDINGS
def test_an_owner_that_starts_while_the_second_store_is_away_tiers(tier: Tier) -> None:
    """A queue all of whose messages are over there waits for it; the others go on at once."""
    tier.broker.put("Others", 0, b"here")
    good(*tier.first, "tier", tier.broker.directory)
    good(*tier.second, "offload", "Orders")
    for topic in ("Orders", "Others"):
        tier.broker.put(topic, 0, b"more")
    tier.proxy.faults = [WireFault("reset")]

    async def follow() -> None:
        settings = tier.settings(tier.url)
        async with tieredstore.follow(
            tier.broker.directory, tier.directory, settings=settings, cluster="C", broker="broker-a"
        ) as one:
            task = asyncio.create_task(one.run())
            patience = Patience("nothing is tiered", marks=lambda: len(tier.proxy.requests))
            await until(lambda: one.statistics().messages == 1, patience)
            tier.proxy.faults = []
            await until(lambda: one.statistics().messages == 2, patience)
            task.cancel()
            await asyncio.wait([task])

    asyncio.run(follow())
    tier.assert_whole([*BODIES, "more"])


def objects(seaweed: SeaweedFs, url: str) -> list[str]:
    """What lies in the second store, but for the registration of its last owner."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    found = [one["path"] for page in seaweed.client(bucket).list(prefix) for one in page]
    return [path for path in found if f"/{OWNER_PREFIX}" not in path]


def test_the_place_of_another_tier(tier: Tier, s3_url: str) -> None:
    there = f"{s3_url}/theirs"
    good("--tier", there, "tier", tier.broker.directory)
    said = refused(*tier.with_second(there), "offload", "Orders")
    assert "a tier lies in " in said
    tier.assert_first_is_whole()
    assert good("--tier", there, "check").endswith("nothing is wrong\n")


@pytest.mark.slow
@FINDINGS
def test_a_reader_of_another_store_that_did_not_answer_at_first(offloaded: Tier) -> None:
    other = f"{offloaded.url}/other"

    async def read() -> str:
        offloaded.proxy.faults = [WireFault("busy")]
        settings = offloaded.settings(other)
        async with tieredstore.open(offloaded.directory, settings=settings) as opened:
            assert offloaded.proxy.struck["busy"]
            offloaded.proxy.faults = []
            with pytest.raises(Denied) as told:
                _ = [message async for message in opened.messages("Orders", 0)]
            return told.value.reason

    assert "is not that of this tier" in asyncio.run(read())
    offloaded.assert_whole()


@FINDINGS
def test_a_reader_from_before_the_first_offload(tier: Tier) -> None:
    """Its second store is not the one that somebody offloads to meanwhile."""

    async def read() -> str:
        settings = tier.settings(f"{tier.url}/other")
        async with tieredstore.open(tier.directory, settings=settings) as opened:
            await asyncio.to_thread(good, *tier.second, "offload", "Orders")
            await opened.refresh()
            with pytest.raises(Denied) as told:
                _ = [message async for message in opened.messages("Orders", 0)]
            return told.value.reason

    assert "is not that of this tier" in asyncio.run(read())
    tier.assert_whole()


@pytest.mark.slow
@FINDINGS
def test_an_owner_of_another_store_that_did_not_answer_at_first_deletes_nothing_there(
    offloaded: Tier, seaweed: SeaweedFs
) -> None:
    """What is to be deleted stays to be deleted, where it really lies."""
    tier = offloaded
    other = tier.with_second(f"{tier.url}/other")

    tier.proxy.faults = [WireFault("reset", path="%40store")]  # it answers all else
    done = invoke(*other, "delete-topic", "--tier-only", "Orders")
    assert done.exit_code == 0, done.output
    assert STAY in complaints(done.stderr)
    tier.proxy.faults = []
    good(*tier.second, "compact")
    assert [name.rpartition("/")[2] for name in objects(seaweed, tier.url)] == ["@store"]
