"""What the file system promises to fsspec's users, against a real server."""

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import fsspec
import pytest

from provider.s3.file_system import PROTOCOL, S3FileSystem
from tests.support.seaweedfs import ACCESS_KEY, SECRET_KEY, SeaweedFs

BODY = bytes(range(100))


async def test_create_is_refused_where_something_is_and_changes_nothing(
    fs: S3FileSystem, place: str
) -> None:
    await fs._pipe_file(f"{place}/a", b"first", mode="create")
    with pytest.raises(FileExistsError):
        await fs._pipe_file(f"{place}/a", b"second", mode="create")
    assert await fs._cat_file(f"{place}/a") == b"first"


async def test_if_match_writes_only_over_that_e_tag(fs: S3FileSystem, place: str) -> None:
    tag = await fs._pipe_file(f"{place}/a", b"first")
    with pytest.raises(FileExistsError):
        await fs._pipe_file(f"{place}/a", b"other", if_match='"no such tag"')
    assert await fs._pipe_file(f"{place}/a", b"second", if_match=tag) != tag
    assert await fs._cat_file(f"{place}/a") == b"second"


async def test_an_unknown_option_of_a_write_is_an_error(fs: S3FileSystem, place: str) -> None:
    with pytest.raises(TypeError, match="IfMatch"):
        await fs._pipe_file(f"{place}/a", b"x", IfMatch="tag")
    with pytest.raises(ValueError, match="overwrite or create"):
        await fs._pipe_file(f"{place}/a", b"x", mode="append")
    with pytest.raises(TypeError, match="colour"):
        S3FileSystem(colour="red")
    with pytest.raises(ValueError, match="never kept"):
        S3FileSystem(use_listings_cache=True)


async def test_buffers_are_joined_on_the_way(fs: S3FileSystem, place: str) -> None:
    buffers = [b"abc", bytearray(b""), memoryview(b"def"), bytearray(b"ghi")]
    await fs._pipe_file(f"{place}/a", buffers, mode="create")
    assert await fs._cat_file(f"{place}/a") == b"abcdefghi"
    await fs._pipe_file(f"{place}/none", [], mode="create")
    assert await fs._cat_file(f"{place}/none") == b""


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (None, None),
        (0, 5),
        (None, 5),
        (95, None),
        (-7, None),
        (10, 20),
        (-10, -5),
        (0, -90),
        (20, 10_000),
        (100, 101),
        (5_000, 6_000),
        (7, 7),
        (9, 3),
        (100, None),
    ],
)
async def test_a_range_is_that_of_a_slice(
    fs: S3FileSystem, place: str, start: int | None, end: int | None
) -> None:
    await fs._pipe_file(f"{place}/a", BODY)
    assert await fs._cat_file(f"{place}/a", start, end) == BODY[start:end]


async def test_what_is_not_there_is_file_not_found(fs: S3FileSystem, place: str) -> None:
    for start, end in [(None, None), (0, 5), (3, 3)]:
        with pytest.raises(FileNotFoundError):
            await fs._cat_file(f"{place}/none", start, end)
    with pytest.raises(FileNotFoundError):
        await fs._info(f"{place}/none")
    with pytest.raises(FileNotFoundError):
        await fs._ls(f"{place}/none")
    assert not await fs._exists(f"{place}/none")
    assert await fs._rm_objects([f"{place}/none"]) == []
    assert await fs._directories(f"{place}/none") == []


async def test_listings_see_at_once_what_others_do(
    fs: S3FileSystem, place: str, seaweed: SeaweedFs
) -> None:
    assert await fs._find(place) == []
    other = S3FileSystem(asynchronous=True, **seaweed.storage)
    for name in ("a", "d/b", "d/c/e"):
        await other._pipe_file(f"{place}/{name}", b"12")
    assert await fs._find(place) == [f"{place}/{name}" for name in ("a", "d/b", "d/c/e")]
    assert await fs._ls(place, detail=False) == [f"{place}/d", f"{place}/a"]
    assert await fs._directories(place) == [f"{place}/d"]
    assert (await fs._info(f"{place}/d"))["type"] == "directory"
    assert (await fs._info(f"{place}/a"))["size"] == 2
    await other._rm_file(f"{place}/d/b")
    found = await fs._find(f"{place}/d", detail=True)
    assert {name: info["size"] for name, info in found.items()} == {f"{place}/d/c/e": 2}


async def test_a_listing_of_many_comes_in_pages_and_goes_in_one_request_for_1000(
    fs: S3FileSystem, place: str
) -> None:
    names = [f"{place}/{number:04d}" for number in range(1_010)]
    async with asyncio.TaskGroup() as group:
        for name in names:
            group.create_task(fs._pipe_file(name, b""))
    pages = [page async for page in fs._list_after(f"{place}/", "")]
    assert [path for page in pages for path, _, _ in page] == names
    assert max(map(len, pages)) <= 1_000
    later = [page async for page in fs._list_after(f"{place}/1", f"{place}/1003")]
    assert [path for page in later for path, _, _ in page] == names[1_004:]
    assert await fs._rm_objects(names) == []
    assert await fs._find(place) == []


def test_it_is_a_file_system_for_anybody(
    seaweed: SeaweedFs, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweed.environment.items():
        monkeypatch.setenv(name, value)
    found = fsspec.filesystem(PROTOCOL)
    assert isinstance(found, S3FileSystem)
    with found.open(f"{PROTOCOL}://{place}/x/file.json", "w") as file:
        json.dump({"k": "v" * 100}, file)
    with fsspec.open(f"{PROTOCOL}://{place}/x/file.json") as file:
        assert json.load(cast("Any", file)) == {"k": "v" * 100}
    with pytest.raises(FileExistsError), found.open(f"{place}/x/file.json", "xb") as made:
        cast("Any", made).write(b"other")
    found.cp_file(f"{place}/x/file.json", f"{place}/y")
    found.get(f"{place}/x", str(tmp_path / "got"), recursive=True)
    assert (tmp_path / "got" / "file.json").read_bytes() == found.cat_file(f"{place}/y")
    found.put_file(str(tmp_path / "got" / "file.json"), f"{place}/z/1")
    assert found.cat_ranges([f"{place}/y"] * 2, [0, 2], [2, 3]) == [b'{"', b"k"]
    found.rm(place, recursive=True)
    assert not found.exists(place)


async def test_a_wrong_key_is_a_sentence_without_secrets(seaweed: SeaweedFs, place: str) -> None:
    wrong = "wrongwrongwrongwrong"
    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": wrong, "expires_at": None}
    fs = S3FileSystem(
        asynchronous=True, endpoint=seaweed.endpoint, region="us-east-1", credentials=lambda: keys
    )
    with pytest.raises(PermissionError) as refused:
        await fs._pipe_file(f"{place}/a", b"x", mode="create")
    said = f"{refused.value} {refused.value!r} {fs!r} {fs.storage_options}"
    assert "bucket 'files' at http://127.0.0.1" in said
    assert "SignatureDoesNotMatch" in said
    assert not any(secret in said for secret in (wrong, SECRET_KEY, ACCESS_KEY))
