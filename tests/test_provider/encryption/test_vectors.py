"""Objects that another implementation of the format encrypted are read; changed ones are not."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from provider.encryption.keys import MasterKeys
from provider.encryption.store import EncryptedStore
from provider.errors import Corrupt
from provider.memory import MemoryStore
from provider.ranges import ByteRange

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_text())
OBJECTS: dict[str, dict[str, Any]] = VECTORS["objects"]
CONTENT = bytes(range(251)) * 40


async def storage(objects: dict[str, bytes]) -> EncryptedStore:
    inner = MemoryStore()
    await inner.create(VECTORS["wrap_name"], [json.dumps(VECTORS["wrap"]).encode()])
    for name, raw in objects.items():
        await inner.create(name, [raw])
    return EncryptedStore(inner, MasterKeys.parse(VECTORS["master"]), held="@journal/")


def object_of(name: str) -> bytes:
    return base64.b64decode("".join(OBJECTS[name]["object"]))


@pytest.mark.parametrize("name", sorted(OBJECTS))
async def test_an_object_of_another_implementation_is_read(name: str) -> None:
    size = int(OBJECTS[name]["content_bytes"])
    store = await storage({name: object_of(name)})
    assert bytes(await store.read(name)) == CONTENT[:size]
    assert await store.size(name) == size
    for start in range(0, size, 37):
        assert bytes(await store.read(name, ByteRange(start, size))) == CONTENT[start:size]


async def test_an_object_of_another_implementation_is_refused_under_another_name() -> None:
    one, two = sorted(OBJECTS)
    store = await storage({one: object_of(two), two: object_of(one)})
    for name in (one, two):
        with pytest.raises(Corrupt, match="changed, moved, or sealed"):
            await store.read(name)
