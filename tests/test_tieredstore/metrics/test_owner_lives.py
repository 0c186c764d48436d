"""What the page of an owner tells in the lives of an owner: start, orderly end, take-over."""

import asyncio
from pathlib import Path

from prometheus_client import generate_latest

import tieredstore
from tests.support.fake_broker import FakeBroker
from tests.support.http import value_of
from tieredstore.metrics.page import unready_reason

SETTINGS = {"tieredStoreTakeoverTimeout": 0, "brokerName": "b"}


async def shown(follower: tieredstore.Follower) -> tuple[float, float, str]:
    """Whether it owns the tier and took it by force, and why it is not ready."""
    opened = follower._open
    assert opened is not None
    moment = follower.moment()
    page = (await asyncio.to_thread(generate_latest, opened.registry)).decode()
    owner = value_of(page, "tieredstore_owner{")
    assert owner == moment.is_owner
    return owner, value_of(page, "tieredstore_took_over{"), unready_reason(moment)


async def test_m5_an_owner_is_one_until_the_end_of_its_orderly_close(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    broker.put("A", 0, b"first")
    for _ in range(2):  # a start, and a start after a planned stop
        follower = tieredstore.follow(broker.directory, tmp_path / "tier", settings=SETTINGS)
        async with follower:
            await follower.drain()
            assert await shown(follower) == (1, 0, "")
        assert await shown(follower) == (1, 0, "it ends: the journal was closed (@journal/)")


async def test_m5_a_true_take_over_is_told_by_the_new_owner_and_by_the_former_one(
    tmp_path: Path,
) -> None:
    broker = FakeBroker(tmp_path / "store")
    broker.put("A", 0, b"first")
    root = tmp_path / "tier"
    older = tieredstore.follow(broker.directory, root, settings=SETTINGS)
    newer = tieredstore.follow(broker.directory, root, settings=SETTINGS, take_over=True)
    try:
        async with older:
            await older.drain()
            async with newer:
                assert (await shown(newer))[:2] == (1, 1)
                broker.put("A", 0, b"second")
                await older.drain()
    except tieredstore.Fenced:
        owner, forced, reason = await shown(older)
        assert (owner, forced) == (0, 0)
        assert reason.startswith("the tier is no longer ours: ")
    else:
        raise AssertionError("the former owner was not fenced")


async def test_m5_an_option_that_nothing_needed_is_no_take_over(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    for _ in range(2):
        follower = tieredstore.follow(
            broker.directory, tmp_path / "tier", settings=SETTINGS, take_over=True
        )
        async with follower:
            assert (await shown(follower))[:2] == (1, 0)
