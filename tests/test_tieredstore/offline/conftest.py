"""Tiers of the golden store, made once: with sealed index files, and in packed parts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from tests.support.cli import run
from tests.support.golden import ROCKETMQ_533, GoldenTree, unpacked
from tests.support.packed_objects import Objects, PackedTier
from tests.test_tieredstore.offline.test_rebuild import options_of


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[GoldenTree, Path]:
    """The golden store and its tier, with sealed index files; copied by those who damage it."""
    tree = unpacked(ROCKETMQ_533)
    root = tmp_path_factory.mktemp("sound") / "tier"
    run(*options_of(tree, root), "tier", tree.store)
    return tree, root


@pytest.fixture(scope="session")
def sound_objects() -> Iterator[Objects]:
    """All objects of a sound tier."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    tier = PackedTier(unpacked(ROCKETMQ_533), "memory://bucket/sound")
    asyncio.run(tier.make())
    yield tier.objects
    memory.store.clear()


@pytest.fixture
def packed_tier(
    sound_objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PackedTier:
    """A copy of it of the test's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made = PackedTier(unpacked(ROCKETMQ_533), f"memory://bucket/{tmp_path.name}")
    made.put(sound_objects)
    return made
