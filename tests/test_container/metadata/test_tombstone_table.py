"""Tombstones found by the directory of their queue, through all changes."""

import random

from container.metadata.records import Tombstone
from container.metadata.tables import TombstoneOverlay, TombstoneTable, directory_of

NAMES = [f"T/{queue}/{kind}/{base:020}" for queue in range(3) for kind in "CU" for base in range(3)]
NAMES += ["@manifest/T/0/x", "@parts/1/2", "plain"]
DIRECTORIES = ["T/0", "T/1", "T/2", "@manifest/T", "T/3"]


def dead(name: str, due_ms: int = 1) -> Tombstone:
    return Tombstone(name, due_ms, "expired")


def test_a_directory_has_what_a_scan_of_all_tombstones_finds() -> None:
    rng = random.Random(5)
    table = TombstoneTable()
    for number in range(400):
        if rng.random() < 0.5:
            name = rng.choice(NAMES)
            table[name] = dead(name, number)
        else:
            table.pop(rng.choice(NAMES), None)
        if number % 50 == 7:
            table = table.copy()
        for directory in DIRECTORIES:
            expected = {name for name in table if directory_of(name) == directory}
            assert set(table.in_directory(directory)) == expected


def test_the_changes_of_a_transaction_count_in_a_directory() -> None:
    table = TombstoneTable({NAMES[0]: dead(NAMES[0])})
    overlay = TombstoneOverlay(table)
    assert overlay.has_in_directory("T/0")
    overlay.drop(NAMES[0])
    assert not overlay.has_in_directory("T/0")
    overlay.put(NAMES[-4], dead(NAMES[-4]))
    assert overlay.has_in_directory("T/2")
    overlay.drop(NAMES[-4])
    assert not overlay.has_in_directory("T/2")
    assert table == {NAMES[0]: dead(NAMES[0])}
