"""A restore beside an owner that merges, expires and deletes: its directory is that of one time."""

import random
from functools import partial
from pathlib import Path

import pytest

from provider.errors import Unavailable
from tests.support.level import by_level
from tests.support.living_tier import Interrupted, LivingTier, Row, before_request
from tests.support.restored import ALL, OPTIONS, SIZES, own_contents, small_groups
from tests.test_tieredstore.offline.test_living_tier import (
    ANY,
    EVENTS,
    OUTAGE,
    REQUESTS_MAX,
    grown,
    tier,
)
from tieredstore.config.effective import Config
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.jobs.restore_store import RestoreReport, restore_store

__all__ = ["grown", "small_groups", "tier"]  # fixtures

SEEDS = by_level(quick=4, full=4, nightly=400)


def restored(tier: LivingTier, root: Path, engine: OneProcess | None = None) -> RestoreReport:
    settings = {"tieredStoreFilePath": tier.url, **tier.settings, **SIZES}
    config = Config.load(settings=settings)
    return restore_store(config, engine or OneProcess(), root, wanted=ALL, offsets={})


def rows_of(root: Path) -> set[Row]:
    """All messages of the directory, which are those of whole queues to their ends."""
    return {
        (topic, queue_id, one.queue_offset, one.body)
        for (topic, queue_id), found in own_contents(root, OPTIONS).items()
        for one in found
    }


def assert_is_of_one_time(root: Path, report: RestoreReport, possible: list[set[Row]]) -> None:
    rows = rows_of(root)
    assert rows in possible
    assert report.messages == len(rows)
    assert report.is_whole, "absence is no damage"


@pytest.mark.parametrize("event", EVENTS)
def test_what_happens_between_plan_and_read_is_in_the_directory_or_not_at_all(
    tier: LivingTier, tmp_path: Path, event: str
) -> None:
    root, before = tmp_path / "restored", set(tier.rows)
    engine = Interrupted(partial(EVENTS[event], tier))
    if event in OUTAGE:
        with pytest.raises(Unavailable):
            restored(tier, root, engine)
        tier.come_back()
        engine = OneProcess()
    report = restored(tier, root, engine)
    assert_is_of_one_time(root, report, [before, set(tier.rows)])


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_happens_at_any_request_is_in_the_directory_or_not_at_all(
    tier: LivingTier, tmp_path: Path, seed: int
) -> None:
    rng, before = random.Random(seed), set(tier.rows)
    event, number = rng.choice([*ANY]), rng.randrange(1, REQUESTS_MAX)
    root = tmp_path / "restored"
    with before_request(lambda at, *_: at == number, partial(ANY[event], tier)):
        report = restored(tier, root)
    assert_is_of_one_time(root, report, [before, set(tier.rows)])
