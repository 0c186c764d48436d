"""Hard links that keep CommitLog files which a broker deletes before they are tiered.

A broker deletes by age and disk use, and asks no reader. A second link in a directory of ours
keeps the file's bytes; it costs no disk until the broker removes its own link. Nothing is ever
written through a pin, and the broker's directory is only ever read. Decision 0011.
"""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from container.names.rocketmq import local_file_name, parse_local_file_name
from provider.errors import Denied, Unavailable
from tieredstore.following.directory.layout import FileRun
from tieredstore.following.file_errors import translated

PINS = "commitlog"


@dataclass(frozen=True, slots=True)
class Pin:
    """One link of ours."""

    path: Path
    bytes: int
    is_last: bool
    """Whether the broker deleted the file, so that only the pin keeps it."""


class Pins:
    """The links in one directory. One thread at a time.

    P1  Every live file at or above `low` is pinned: `sync` is called before the broker can have
        deleted a file that an earlier call saw.
    P2  Files that only pins keep take at most `bytes_max`; over it the oldest go, and are counted.
    """

    def __init__(self, directory: Path, source: Path, bytes_max: int) -> None:
        """Use `directory` for the pins of the CommitLog in `source`; takes up what is there.

        Raises:
            Denied: it lies on another volume, inside the broker's directory, or is not writable.
            Unavailable: it cannot be read right now.
        """
        self._directory = directory / PINS
        self._source = source
        self._bytes_max = bytes_max
        self._pins: dict[int, Pin] = {}
        self.dropped_untiered = 0
        """Files that went because of the bound, before everything in them was tiered."""
        self._check_place(directory)
        self._read()

    def __repr__(self) -> str:
        return (
            f"<Pins {self._directory}: {len(self._pins)} files, {self.pinned_bytes} of "
            f"{self._bytes_max} bytes kept, {self.dropped_untiered} dropped untiered>"
        )

    @property
    def pinned_bytes(self) -> int:
        """Bytes on disk that only pins keep."""
        return sum(pin.bytes for pin in self._pins.values() if pin.is_last)

    def check(self, live: FileRun) -> None:
        """Assert P1 and P2 as of the last `sync`, which got the files of `live`."""
        low = min(self._pins, default=live.end)
        above = {base for base in live.bases if base >= low}
        assert above <= self._pins.keys(), f"P1: {self}"
        assert self.pinned_bytes <= self._bytes_max, f"P2: {self}"

    def paths(self) -> Mapping[int, Path]:
        """The pinned files by first byte."""
        return {base: pin.path for base, pin in self._pins.items()}

    def sync(self, live: FileRun, low: int) -> list[str]:
        """Pin every live file that ends above `low`, drop what ends at or below it. O(files).

        A directory that was removed is made again.

        Returns:
            One sentence for each file that had to go although it was not tiered, and one for a
            directory that was removed.

        Raises:
            Unavailable, Denied: a link cannot be made.
        """
        removed = self._make_again()
        for base in live.bases:
            if base + live.file_bytes > low:
                self._pin(base)
        self._read()
        for base in sorted(self._pins):
            is_foreign = base % live.file_bytes != 0 if live.file_bytes else False
            is_beyond = bool(live.bases) and base >= live.end  # of a store that was replaced
            if base + live.file_bytes <= low or is_foreign or is_beyond:
                self._drop(base)
        return removed + self._bound()

    def _make_again(self) -> list[str]:
        try:
            self._directory.mkdir(parents=True)
        except FileExistsError:
            return []
        except OSError as error:
            raise translated(error, self._directory) from error
        lost = self.pinned_bytes
        self._pins = {}
        gone = f"{lost} bytes that only pins kept are gone" if lost else "nothing is lost"
        return [f"{self._directory} was removed, so its pins were made anew: {gone}."]

    def _bound(self) -> list[str]:
        lost: list[str] = []
        kept = self.pinned_bytes
        for base in sorted(self._pins):
            if kept <= self._bytes_max:
                break
            pin = self._pins[base]
            if not pin.is_last:
                continue
            lost.append(
                f"{pin.path} was dropped before everything in it was tiered, for pins of "
                f"{kept} bytes are over the bound of {self._bytes_max}."
            )
            kept -= pin.bytes
            self.dropped_untiered += 1
            self._drop(base)
        return lost

    def _pin(self, base: int) -> None:
        name = local_file_name(base)
        source, pin = self._source / name, self._directory / name
        try:
            if base in self._pins:
                if source.stat().st_ino == pin.stat().st_ino:
                    return
                pin.unlink()  # after a crash, the broker wrote another file of this name
            os.link(source, pin)
        except FileExistsError:
            return  # made just now by another follower, which one of us replaces; `_read` finds it
        except (FileNotFoundError, NotADirectoryError):
            return  # deleted between the scan and now; the next scan, or `_read`, shows it
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise self._other_volume() from error
            raise translated(error, pin) from error

    def _drop(self, base: int) -> None:
        pin = self._pins.pop(base)
        try:
            pin.path.unlink(missing_ok=True)
        except OSError as error:
            raise translated(error, pin.path) from error

    def _read(self) -> None:
        found: dict[int, Pin] = {}
        try:
            with os.scandir(self._directory) as entries:
                for entry in entries:
                    base = parse_local_file_name(entry.name)
                    if base is not None:
                        status = entry.stat()
                        is_last = status.st_nlink == 1
                        found[base] = Pin(Path(entry.path), status.st_size, is_last)
        except (FileNotFoundError, NotADirectoryError) as error:
            reason = "the pins' directory was removed, or is none: it is looked for again"
            raise Unavailable(reason, str(self._directory)) from error
        except OSError as error:
            raise translated(error, self._directory) from error
        self._pins = found

    def _check_place(self, directory: Path) -> None:
        root = self._source.parent.resolve()
        if directory.resolve().is_relative_to(root):
            raise Denied(
                f"tieredStorePinPath lies inside the broker's directory {root}, which is never "
                "written: name a directory beside it",
                str(directory),
            )
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if self._directory.stat().st_dev != self._source.stat().st_dev:
                raise self._other_volume()
        except OSError as error:
            raise translated(error, self._directory) from error

    def _other_volume(self) -> Denied:
        return Denied(
            f"tieredStorePinPath must lie on the volume of {self._source}, for pins are hard "
            "links: name a directory on that volume",
            str(self._directory),
        )
