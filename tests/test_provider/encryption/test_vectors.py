"""Objects that another implementation of the format encrypted are read; changed ones are not."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from provider.encryption.keys import MasterKeys
from provider.encryption.store import EncryptedStore
from provider.errors import Corrupt
from provider.ranges import ByteRange
from provider.testing.memory import MemoryStore
from tests.test_provider.encryption.make_bound_vectors import vectors

Vectors = dict[str, Any]
HERE = Path(__file__).parent
FORMS: dict[str, Vectors] = {
    form: json.loads((HERE / file).read_text())
    for form, file in (("older", "vectors.json"), ("bound", "bound_vectors.json"))
}
CONTENT = bytes(range(251)) * 40
EACH = [(form, name) for form, made in FORMS.items() for name in sorted(made["objects"])]


async def storage(made: Vectors, objects: dict[str, bytes]) -> EncryptedStore:
    inner = MemoryStore()
    await inner.create(made["wrap_name"], [json.dumps(made["wrap"]).encode()])
    for name, raw in objects.items():
        await inner.create(name, [raw])
    return EncryptedStore(inner, MasterKeys.parse(made["master"]), held="@journal/")


def object_of(made: Vectors, name: str) -> bytes:
    return base64.b64decode("".join(made["objects"][name]["object"]))


@pytest.mark.parametrize(("form", "name"), EACH)
async def test_an_object_of_another_implementation_is_read(form: str, name: str) -> None:
    made = FORMS[form]
    size = int(made["objects"][name]["content_bytes"])
    store = await storage(made, {name: object_of(made, name)})
    assert bytes(await store.read(name)) == CONTENT[:size]
    assert await store.size(name) == size
    for start in range(0, size, 37):
        assert bytes(await store.read(name, ByteRange(start, size))) == CONTENT[start:size]


@pytest.mark.parametrize("form", FORMS)
async def test_an_object_of_another_implementation_is_refused_under_another_name(form: str) -> None:
    made = FORMS[form]
    one, two, *_ = sorted(made["objects"])
    store = await storage(made, {one: object_of(made, two), two: object_of(made, one)})
    for name in (one, two):
        with pytest.raises(Corrupt, match="changed, moved, or sealed"):
            await store.read(name)


def test_the_bound_objects_are_what_the_other_implementation_makes() -> None:
    assert vectors() == FORMS["bound"]


@pytest.mark.parametrize("field", ["tier", "reads_older", "format"])
async def test_a_changed_wrap_is_refused(field: str) -> None:
    made = FORMS["bound"]
    other = {"tier": "00" * 16, "reads_older": True, "format": 1}[field]
    changed = {**made, "wrap": {**made["wrap"], field: other}}
    (name, *_) = made["objects"]
    store = await storage(changed, {name: object_of(made, name)})
    with pytest.raises(Corrupt, match="another key, or damage"):
        await store.read(name)
