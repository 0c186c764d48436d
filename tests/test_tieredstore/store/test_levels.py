"""Who serves a read: every row of RocketMQ's policy."""

import pytest

from tieredstore.store.levels import Level, Source, who_serves

ALL = tuple(Level)


@pytest.mark.parametrize("level", ALL)
def test_a_filtered_topic_is_served_by_the_hot_log(level: Level) -> None:
    assert who_serves(level, 0, 10, is_filtered=True, in_store=False) is Source.HOT


def test_row_1_force_reads_the_tier_whatever_it_has() -> None:
    for commit in (None, 0, 5, 10):
        assert who_serves(Level.FORCE, 5, commit) is Source.TIER


def test_row_2_disable_never_reads_the_tier() -> None:
    assert who_serves(Level.DISABLE, 0, 10, in_store=False) is Source.HOT


@pytest.mark.parametrize("level", [Level.NOT_IN_DISK, Level.NOT_IN_MEM])
def test_row_3_a_queue_that_the_tier_lacks_is_served_by_the_hot_log(level: Level) -> None:
    assert who_serves(level, 0, None, in_store=False) is Source.HOT


@pytest.mark.parametrize("level", [Level.NOT_IN_DISK, Level.NOT_IN_MEM])
@pytest.mark.parametrize("offset", [10, 11])
def test_row_4_what_is_not_committed_is_served_by_the_hot_log(level: Level, offset: int) -> None:
    assert who_serves(level, offset, 10, in_store=False) is Source.HOT


@pytest.mark.parametrize("level", [Level.NOT_IN_DISK, Level.NOT_IN_MEM])
def test_rows_5_and_6_what_the_hot_log_lacks_is_served_by_the_tier(level: Level) -> None:
    assert who_serves(level, 9, 10) is Source.ASK_STORE
    assert who_serves(level, 9, 10, in_store=False) is Source.TIER


def test_row_7_what_is_not_in_memory_is_served_by_the_tier() -> None:
    assert who_serves(Level.NOT_IN_MEM, 9, 10, in_store=True) is Source.ASK_MEMORY
    assert who_serves(Level.NOT_IN_MEM, 9, 10, in_store=True, in_memory=False) is Source.TIER


def test_row_8_the_rest_is_served_by_the_hot_log() -> None:
    assert who_serves(Level.NOT_IN_MEM, 9, 10, in_store=True, in_memory=True) is Source.HOT
    assert who_serves(Level.NOT_IN_DISK, 9, 10, in_store=True) is Source.HOT


@pytest.mark.parametrize("level", ALL)
def test_a_level_is_named_or_numbered(level: Level) -> None:
    for said in (level, level.name, level.value, str(level.value), f" {level.name} "):
        assert Level.of(said) is level


@pytest.mark.parametrize("said", ["", "4", 4, -1, "force", "NOT_IN_TIER", True, None, 1.5])
def test_what_is_no_level_is_refused_with_those_there_are(said: str | int) -> None:
    if said is True:
        assert Level.of(said) is Level.NOT_IN_DISK
        return
    with pytest.raises(ValueError, match=r"NOT_IN_DISK \(1\)"):
        Level.of(said)
