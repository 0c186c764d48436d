"""`check` compares our index files with the messages that they cover, in both directions."""

import numpy as np
import pytest

from container.index.layout import IndexHeader, KeyItems
from container.index.sealed import decode_sealed, fitting_slots, seal_index
from container.metadata.operations import DropIndexFile, PutIndexFile
from container.metadata.records import IndexFile
from container.names.rocketmq import index_name
from container.names.tier_objects import IndexBase
from container.record.checksum import crc32c
from container.tier import Tier
from provider.errors import Corrupt
from tests.support.owned_tier import QUEUE, OwnedWorld, put
from tests.test_container.upkeep.test_index_files import OTHER, world

pytestmark = pytest.mark.leaves_findings(
    "index-key-missing", "index-item", "index-file", why="the test publishes a wrong file"
)
EDITED = 99


async def replaced(over: OwnedWorld, tier: Tier, items: KeyItems, cut_off: int = 0) -> str:
    """Publish a file of other items in place of the one that is there; its name."""
    (file,) = tier.state.index_files.values()
    raw = seal_index(
        items, slots=fitting_slots(len(items)), begin_timestamp=file.begin_timestamp
    ).tobytes()
    header = IndexHeader.decode(raw, path="")
    raw = raw[: len(raw) - cut_off]
    base = IndexBase(tier.journal.epoch, EDITED).number
    other = IndexFile(
        index_name(base), base, len(raw), header.begin_timestamp, header.end_timestamp,
        header.used_slots, header.items, file.coverage, crc32c(raw),
    )  # fmt: skip
    await over.stores[-1].create(other.object_name, [raw])
    await over.stores[-1].delete([file.object_name])
    await tier.journal.publish([DropIndexFile(file.object_name), PutIndexFile(other)])
    return other.object_name


async def sealed_items(over: OwnedWorld, tier: Tier) -> KeyItems:
    await put(tier, 60, QUEUE, OTHER)
    await over.pass_time(1)
    (file,) = tier.state.index_files.values()
    raw = await over.stores[-1].read(file.object_name)
    return decode_sealed(raw, path=file.object_name)[1]


@pytest.mark.parametrize("change", ["hash", "position", "time", "size"])
async def test_a_wrong_item_is_told_and_the_key_that_it_hides(change: str) -> None:
    over = world()
    async with over.owned() as tier:
        items = await sealed_items(over, tier)
        row = int(np.flatnonzero(items["queue_id"] == 1)[7])
        match change:
            case "hash":
                items["key_hash"][row] ^= 1
            case "position":
                items["position"][row] += 3
            case "size":
                items["size"][row] += 1
            case _:
                items["store_timestamp"][row] += 5000
        name = await replaced(over, tier, items)
        found = await over.findings(tier)
        assert [one.split(" ")[0].rstrip(":") for one in found] != []
        assert any("index-key-missing" in one and name in one for one in found)
        assert any("index-item" in one and name in one for one in found)
        assert len(found) == 2


async def test_a_missing_item_is_told() -> None:
    over = world()
    async with over.owned() as tier:
        items = await sealed_items(over, tier)
        await replaced(over, tier, items[1:])
        (finding,) = await over.findings(tier)
        assert "index-key-missing" in finding


async def test_a_file_that_contradicts_its_format_is_told() -> None:
    over = world()
    async with over.owned() as tier:
        name = await replaced(over, tier, await sealed_items(over, tier), cut_off=4)
        (finding,) = await over.findings(tier)
        assert "index-file" in finding
        assert name in finding
        with pytest.raises(Corrupt):
            decode_sealed(await over.stores[-1].read(name), path=name)
