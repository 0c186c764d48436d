"""File systems of fsspec that lie, fail or hang, for tests of stores over them."""

import asyncio
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem


class AsyncMemory(AsyncFileSystem):
    """An asynchronous file system without the richer calls, as other projects have; in memory."""

    protocol = "asyncmemory"
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(asynchronous=True, **options)
        self.inner: Any = MemoryFileSystem(global_store=False, skip_instance_cache=True)
        self.calls: list[tuple[str, str]] = []
        self.failing: dict[str, Exception] = {}
        """By call: what it raises."""
        self.stalled = asyncio.Event()
        self.stalled.set()

    async def _begin(self, call: str, path: str) -> None:
        self.calls.append((call, path))
        await self.stalled.wait()
        if call in self.failing:
            raise self.failing[call]

    async def _pipe_file(
        self, path: str, value: Any, mode: str = "overwrite", **options: Any
    ) -> None:
        await self._begin("create", path)
        self.inner.pipe_file(path, value, mode=mode)

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        await self._begin("read", path)
        return self.inner.cat_file(path, start, end)

    async def _info(self, path: str, **options: Any) -> dict[str, Any]:
        await self._begin("size", path)
        return self.inner.info(path)

    async def _ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:  # noqa: FBT001, FBT002 - as in fsspec
        await self._begin("list", path)
        return self.inner.ls(path, detail=detail)

    async def _rm_file(self, path: str, **options: Any) -> Any:
        await self._begin("delete", path)
        self.inner.rm_file(path)


class Overwriting(AsyncMemory):
    """Takes `mode="create"`, and overwrites, as some stock file systems do."""

    async def _pipe_file(
        self, path: str, value: Any, mode: str = "overwrite", **options: Any
    ) -> None:
        await super()._pipe_file(path, value)


class Refusing(AsyncMemory):
    """Refuses a create as s3fs does: with EINVAL."""

    async def _pipe_file(
        self, path: str, value: Any, mode: str = "overwrite", **options: Any
    ) -> None:
        try:
            await super()._pipe_file(path, value, mode)
        except FileExistsError as error:
            raise OSError(22, "At least one of the pre-conditions did not hold") from error


class Cutting(AsyncMemory):
    """Answers every read with one byte too few."""

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        return (await super()._cat_file(path, start, end))[:-1]


class Whole(AsyncMemory):
    """Answers every range with the whole object."""

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        return await super()._cat_file(path)


class Paging(AsyncMemory):
    """Offers the richer calls as our own file systems do, with pages of two."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.undeletable: dict[str, OSError] = {}
        self.is_closed = False

    async def _pipe_file(
        self, path: str, value: Any, mode: str = "overwrite", **options: Any
    ) -> None:
        data = value if isinstance(value, bytes) else b"".join(value)
        await super()._pipe_file(path, data, mode)

    async def _cat_buffer(self, path: str, start: int | None, end: int | None) -> memoryview:
        return memoryview(await self._cat_file(path, start, end))

    async def _directories(self, path: str) -> list[str]:
        try:
            entries = await self._ls(path, detail=True)
        except FileNotFoundError:
            return []
        return [entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory"]

    async def _list_after(self, prefix: str, after: str) -> Any:
        found = sorted(self.inner.find("", detail=True).items(), reverse=True)
        found = [(path, info["size"], None) for path, info in found if path.startswith(prefix)]
        found = [entry for entry in found if entry[0] > after]
        for at in range(0, len(found), 2):
            await self._begin("list", prefix)
            yield found[at : at + 2]

    async def _rm_objects(self, paths: list[str]) -> list[tuple[str, OSError]]:
        await self._begin("delete", paths[0])
        failed: list[tuple[str, OSError]] = []
        for path in paths:
            try:
                if path in self.undeletable:
                    raise self.undeletable[path]
                self.inner.rm_file(path)
            except OSError as error:
                failed.append((path, error))
        return failed

    async def close(self) -> None:
        self.is_closed = True
