"""Where the process may open few files."""

import resource
from pathlib import Path

import pytest

from provider.object_store import Append
from provider.posix.store import PosixStore
from tests.test_provider.test_posix import descriptors_below


async def test_a_store_keeps_fewer_files_open_where_the_process_may_open_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 20))
    store = PosixStore(tmp_path)
    names = [f"q/{number}" for number in range(40)]
    await store.append([Append(name, 0, (b"x",)) for name in names])
    for name in names:
        await store.read(name)
    assert len(descriptors_below(tmp_path)) <= 10 + 1  # the root
    await store.close()
