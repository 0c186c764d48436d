"""What a disk may hold after a power failure: all that was synced, and any part of what was not.

Pages of 4 KiB, lengths of files and single entries of directories each reach the disk by
themselves, in any order, or not at all. A page that lies within a file's length and never reached
the disk holds zeros or garbage. An `fdatasync` that fails drops what it should have written: the
pages count as clean from then on, and a later sync does not write them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

PAGE_BYTES = 4096
VERSIONS_MAX = 4
"""Of one page between two syncs; those in the middle go first."""


@dataclass(eq=False)
class FileNode:
    """A file: what programs see, and what the disk has for certain."""

    cache: bytearray = field(default_factory=bytearray)
    pages: dict[int, bytes] = field(default_factory=dict[int, bytes])
    size: int = 0
    """`pages` and `size` are durable."""
    dirty: dict[int, list[bytes]] = field(default_factory=dict[int, list[bytes]])
    """Versions of each page since the last sync; any of them may be on the disk, or none."""
    sizes: list[int] = field(default_factory=list[int])

    def write(self, position: int, data: bytes) -> None:
        end = position + len(data)
        first = min(position, len(self.cache)) // PAGE_BYTES
        if end > len(self.cache):
            self.cache.extend(bytes(end - len(self.cache)))
            self.sizes.append(end)
        self.cache[position:end] = data
        self._touch(first, -(-end // PAGE_BYTES))

    def truncate(self, size: int) -> None:
        before = len(self.cache)
        if size > before:
            self.cache.extend(bytes(size - before))
        else:
            del self.cache[size:]
            self._touch(size // PAGE_BYTES, -(-before // PAGE_BYTES))
        self.sizes.append(size)

    def _touch(self, first: int, end: int) -> None:
        for number in range(first, end):
            versions = self.dirty.setdefault(number, [])
            versions.append(self._cached(number))
            if len(versions) > VERSIONS_MAX:
                del versions[1]

    def _cached(self, number: int) -> bytes:
        return bytes(self.cache[number * PAGE_BYTES : (number + 1) * PAGE_BYTES])

    def sync(self) -> None:
        for number in self.dirty:
            self.pages[number] = self._cached(number)
        self.size = len(self.cache)
        self.dirty.clear()
        self.sizes.clear()

    def fail_to_sync(self, rng: Random) -> None:
        """Some pages reached the disk, the others never will; the length is not a page."""
        for number, versions in self.dirty.items():
            if rng.random() < 0.3:
                self.pages[number] = versions[-1]
        self.dirty.clear()

    def after_failure(self, rng: Random, data: float) -> bytes:
        """The file's bytes; `data` is the probability that what was not synced is there."""
        size = rng.choice(self.sizes) if self.sizes and rng.random() < data else self.size
        filler = rng.randbytes if rng.random() < 0.5 else bytes
        raw = bytearray()
        for number in range(-(-size // PAGE_BYTES)):
            page = self.pages.get(number, b"")
            if number in self.dirty and rng.random() < data:
                page = rng.choice(self.dirty[number])
            raw += page + filler(PAGE_BYTES - len(page))
        return bytes(raw[:size])


@dataclass(eq=False)
class DirectoryNode:
    """A directory: its entries as programs see them, and those that the disk has for certain."""

    entries: dict[str, FileNode | DirectoryNode] = field(default_factory=dict)
    durable: dict[str, FileNode | DirectoryNode] = field(default_factory=dict)
    dirty: dict[str, list[FileNode | DirectoryNode | None]] = field(default_factory=dict)

    def put(self, name: str, node: FileNode | DirectoryNode | None) -> None:
        if node is None:
            self.entries.pop(name, None)
        else:
            self.entries[name] = node
        self.dirty.setdefault(name, []).append(node)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.dirty.clear()


class Disk:
    """A tree that calls change, below one directory that is there and durable."""

    def __init__(self, base: str, rng: Random) -> None:
        self._base = base
        self._rng = rng
        self.top = DirectoryNode()
        self._nodes: dict[int, FileNode | DirectoryNode] = {}

    def load(self, directory: Path) -> None:
        """Take what is in a directory as the tree, all of it durable."""
        self.top = _loaded(directory)

    def apply(self, call: tuple[Any, ...]) -> None:
        """One call that a program made; those that succeeded, and syncs that did not."""
        verb, *arguments = call
        getattr(self, f"_{verb}")(*arguments)

    def _open(self, fd: int, path: str) -> None:
        found = self._find(path)
        if found is None:
            found = FileNode()
            self._put(path, found)
        self._nodes[fd] = found

    def _close(self, fd: int) -> None:
        del self._nodes[fd]

    def _dup(self, fd: int, other: int) -> None:
        self._nodes[other] = self._nodes[fd]

    def _write(self, fd: int, position: int, data: bytes) -> None:
        self._file(fd).write(position, data)

    def _truncate(self, fd: int, size: int) -> None:
        self._file(fd).truncate(size)

    def _sync(self, fd: int) -> None:
        self._nodes[fd].sync()

    def _fail_to_sync(self, fd: int) -> None:
        self._file(fd).fail_to_sync(self._rng)

    def _mkdir(self, path: str) -> None:
        self._put(path, DirectoryNode())

    def _link(self, source: str, path: str) -> None:
        self._put(path, self._find(source))

    def _rename(self, source: str, path: str) -> None:
        self._put(path, self._find(source))
        self._put(source, None)

    def _unlink(self, path: str) -> None:
        self._put(path, None)

    def _file(self, fd: int) -> FileNode:
        node = self._nodes[fd]
        assert isinstance(node, FileNode)
        return node

    def _find(self, path: str) -> FileNode | DirectoryNode | None:
        node: FileNode | DirectoryNode | None = self.top
        for part in path.removeprefix(self._base).split("/"):
            if part:
                node = node.entries.get(part) if isinstance(node, DirectoryNode) else None
        return node

    def _put(self, path: str, node: FileNode | DirectoryNode | None) -> None:
        parent, _, name = path.rpartition("/")
        folder = self._find(parent)
        assert isinstance(folder, DirectoryNode), path
        folder.put(name, node)

    def lose_power(self, directory: Path, rng: Random) -> None:
        """Write what a power failure may have left into `directory`, a new one, by chance."""
        often = [0.0, 1.0, 0.5, rng.random()]
        PowerFailure(rng, rng.choice(often), rng.choice(often)).leave(self.top, directory)


def _loaded(directory: Path) -> DirectoryNode:
    folder = DirectoryNode()
    for path in directory.iterdir():
        if path.is_dir():
            folder.entries[path.name] = _loaded(path)
        else:
            file = FileNode()
            file.write(0, path.read_bytes())
            file.sync()
            folder.entries[path.name] = file
    folder.sync()
    return folder


class PowerFailure:
    """What one power failure leaves."""

    def __init__(self, rng: Random, data: float, entries: float) -> None:
        """`data`, `entries`: how probably each thing that was not synced is on the disk."""
        self._rng = rng
        self._data = data
        self._entries = entries
        self._files: dict[int, bytes] = {}

    def leave(self, folder: DirectoryNode, directory: Path) -> None:
        directory.mkdir()
        for name in sorted(folder.durable.keys() | folder.dirty.keys()):
            node = folder.durable.get(name)
            if name in folder.dirty and self._rng.random() < self._entries:
                node = self._rng.choice(folder.dirty[name])
            if isinstance(node, DirectoryNode):
                self.leave(node, directory / name)
            elif node is not None:
                (directory / name).write_bytes(self._bytes_of(node))

    def _bytes_of(self, node: FileNode) -> bytes:
        """One file under two names has one content."""
        if id(node) not in self._files:
            self._files[id(node)] = node.after_failure(self._rng, self._data)
        return self._files[id(node)]
