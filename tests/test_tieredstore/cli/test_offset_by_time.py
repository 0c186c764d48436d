"""`offset-by-time`, and the same from Python: moments, boundaries, words for what is not there."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tieredstore
import tieredstore.sync
from container.queue.positions import Boundary, TimeRules
from provider.errors import NotFound
from tests.support.cli import invoke
from tests.support.fake_broker import FIRST_STORE_TIMESTAMP, FakeBroker

MESSAGES = 8
FIRST = datetime.fromtimestamp(FIRST_STORE_TIMESTAMP / 1000, UTC)


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A message a second; read only."""
    root = tmp_path_factory.mktemp("by-time")
    broker = FakeBroker(root / "store")
    for number in range(MESSAGES):
        broker.now_ms = FIRST_STORE_TIMESTAMP + 1000 * number
        broker.put("T", 3, b"body")
    invoke(root / "tier", "tier", broker.directory, "-D", "brokerName=b")
    return root / "tier"


def found(tier: Path, moment: str, *options: str) -> int:
    return int(invoke(tier, "offset-by-time", "T", "3", moment, *options).stdout)


def test_every_form_of_a_moment_finds_its_message(tier: Path) -> None:
    third = FIRST + timedelta(seconds=3)
    for moment in (str(FIRST_STORE_TIMESTAMP + 3000), third.isoformat(), f"{third:%FT%T}"):
        assert found(tier, moment) == 3
        assert found(tier, moment, "--boundary", "upper") == 3
    assert found(tier, "-1h") == found(tier, "1h") == MESSAGES
    assert found(tier, "-1h", "--boundary", "upper") == MESSAGES - 1
    assert found(tier, "-2d", "--boundary=lower") == MESSAGES
    assert found(tier, "2001-01-01") == 0


def test_between_two_messages_the_boundary_and_the_rules_decide(tier: Path) -> None:
    moment = str(FIRST_STORE_TIMESTAMP + 2500)
    assert found(tier, moment) == 3
    assert found(tier, moment, "--boundary", "upper") == 2
    assert found(tier, moment, "--boundary", "upper", "--rules", "tiered") == 3


def test_a_topic_may_have_a_name_like_a_span(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    broker.put("3d", 0, b"body")
    invoke(tmp_path / "tier", "tier", broker.directory, "-D", "brokerName=b")
    assert int(invoke(tmp_path / "tier", "offset-by-time", "3d", "0", "-1h").stdout) == 1


def test_json_names_what_was_asked(tier: Path) -> None:
    moment = FIRST_STORE_TIMESTAMP + 2500
    printed = invoke(tier, "offset-by-time", "T", "3", str(moment), "--json").stdout
    expected = {"topic": "T", "queue_id": 3, "timestamp": moment, "boundary": "LOWER", "offset": 3}
    assert json.loads(printed) == expected


def test_what_is_not_there_is_said_in_one_sentence(tier: Path) -> None:
    assert "no time" in invoke(tier, "offset-by-time", "T", "3", "soon", status=2).output
    assert "queue 3" in invoke(tier, "offset-by-time", "T", "0", "-1h", status=1).output
    assert invoke(tier, "offset-by-time", "T", "3", "-1h", "--boundry", "upper", status=2)


async def test_from_python_with_and_without_await(tier: Path) -> None:
    moment = FIRST + timedelta(seconds=2, microseconds=1)
    async with tieredstore.open(tier) as opened:
        assert await opened.offset_by_time("T", 3, moment) == 3
        assert await opened.offset_by_time("T", 3, moment, Boundary.UPPER) == 2
        assert await opened.earliest_message_time("T", 3) == FIRST_STORE_TIMESTAMP
        with pytest.raises(NotFound):
            await opened.offset_by_time("T", 4, moment)
        with pytest.raises(ValueError, match="no time zone"):
            await opened.offset_by_time("T", 3, moment.replace(tzinfo=None))


def test_without_await(tier: Path) -> None:
    with tieredstore.sync.open(tier) as opened:
        moment = FIRST_STORE_TIMESTAMP + 2500
        assert opened.offset_by_time("T", 3, moment, Boundary.UPPER, TimeRules.TIERED) == 3
        assert opened.earliest_message_time("T", 3) == FIRST_STORE_TIMESTAMP
