"""Pins: hard links that keep CommitLog files which a broker deletes before they are tiered.

A broker deletes by age and disk use, and asks no reader. A second link in a directory of this
reader keeps the file's bytes. It costs no disk space until the broker removes its own link. Nothing
is ever written through a pin, and the broker's directory is only read. Decision 0011.
"""

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from container.names.rocketmq import parse_local_file_name
from provider.errors import Denied, Unavailable
from provider.names import is_there
from tieredstore.following.directory.layout import FileRun, translated

PINS = "commitlog"


@dataclass(frozen=True, slots=True)
class Pin:
    """Pin of one CommitLog file."""

    path: Path
    bytes: int
    is_last: bool
    """Whether the broker deleted the file, so that only the pin keeps it."""


class Pins:
    """Pins of one CommitLog, in a directory on each of its volumes. One thread at a time.

    P1  Every live file at or above `low` is pinned: `sync` is called before the broker can have
        deleted a file that an earlier call saw.
    P2  Files that only pins keep take at most `bytes_max`. Above it the oldest are dropped and
        counted.
    """

    def __init__(
        self, directories: Sequence[Path], sources: Sequence[Path], bytes_max: int
    ) -> None:
        """Use `directories` for the pins of the CommitLog in `sources`. Include existing pins.

        Raises:
            Denied: one lies inside the broker's directory or is not writable, or a source has none
                on its volume.
            Unavailable: one cannot be read right now.
        """
        self._directories = [directory / PINS for directory in directories]
        self._bytes_max = bytes_max
        self._pins: dict[int, Pin] = {}
        self.dropped_untiered = 0
        """Files that were dropped because of the bound before all of their messages were tiered."""
        for directory in directories:
            self._check_place(directory, sources)
        self._places = {source: self._place_for(source) for source in sources}
        """Directory of the pins for each source."""
        self._read()

    def __repr__(self) -> str:
        return (
            f"<Pins {self._directories[0]}: {len(self._pins)} files, {self.pinned_bytes} of "
            f"{self._bytes_max} bytes kept, {self.dropped_untiered} dropped untiered>"
        )

    @property
    def pinned_bytes(self) -> int:
        """Bytes on disk that only pins keep."""
        return sum(pin.bytes for pin in self._pins.values() if pin.is_last)

    def check(self, live: FileRun) -> None:
        """Assert P1 and P2 as of the last `sync`, which was given the files of `live`."""
        low = min(self._pins, default=live.end)
        above = {base for base in live.bases if base >= low}
        assert above <= self._pins.keys(), f"P1: {self}"
        assert self.pinned_bytes <= self._bytes_max, f"P2: {self}"

    def paths(self) -> Mapping[int, Path]:
        """Return the pinned files by first byte."""
        return {base: pin.path for base, pin in self._pins.items()}

    def sync(self, live: FileRun, low: int) -> list[str]:
        """Pin every live file that ends above `low`.

        Drop pins of files that end at or below. O(files). A removed directory is created again.

        Returns:
            A sentence for each file that was dropped although it was not tiered, and one for a
            directory that was removed.

        Raises:
            Unavailable, Denied: a link cannot be created.
        """
        removed = self._make_again()
        for base in live.bases:
            if base + live.file_bytes > low:
                self._pin(live.path_of(base), base)
        self._read()
        for base in sorted(self._pins):
            is_foreign = base % live.file_bytes != 0 if live.file_bytes else False
            is_beyond = bool(live.bases) and base >= live.end  # of a store that was replaced
            if base + live.file_bytes <= low or is_foreign or is_beyond:
                self._drop(base)
        return removed + self._bound()

    def _make_again(self) -> list[str]:
        again = [directory for directory in self._directories if _makes(directory)]
        if not again:
            return []
        kept, self._pins = self._pins, {}
        lost = sum(pin.bytes for pin in kept.values() if pin.is_last and pin.path.parent in again)
        gone = f"{lost} bytes that only pins kept are gone" if lost else "nothing is lost"
        return [f"{path} was removed, so its pins were recreated: {gone}." for path in again]

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

    def _pin(self, source: Path, base: int) -> None:
        pin = self._places[source.parent] / source.name
        known = self._pins.get(base)
        try:
            if known is not None:
                if source.stat().st_ino == known.path.stat().st_ino:
                    return
                known.path.unlink()  # after a crash, the broker wrote another file of this name
            os.link(source, pin)
        except FileExistsError:
            return  # just created by another follower, and one replaces the other; `_read` finds it
        except (FileNotFoundError, NotADirectoryError):
            return  # deleted since the scan; the next scan, or `_read`, shows it
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise _other_volume(source.parent, pin.parent) from error
            raise translated(error, pin) from error

    def _drop(self, base: int) -> None:
        pin = self._pins.pop(base)
        try:
            pin.path.unlink(missing_ok=True)
        except OSError as error:
            raise translated(error, pin.path) from error

    def _read(self) -> None:
        found: dict[int, Pin] = {}
        for directory in self._directories:
            found |= _pins_in(directory)
        self._pins = found

    def _check_place(self, directory: Path, sources: Sequence[Path]) -> None:
        for source in sources:
            is_volume = os.path.ismount(source.parent)  # then it is not the broker's alone
            root = (source if is_volume else source.parent).resolve()
            if directory.resolve().is_relative_to(root):
                raise Denied(
                    f"tieredStorePinPath lies inside the broker's directory {root}, which is never "
                    "written: name a directory beside it",
                    str(directory),
                )
        _makes(directory / PINS)

    def _place_for(self, source: Path) -> Path:
        """Return the directory of pins on the volume of a source, which need not exist yet."""
        try:
            there = next(path for path in (source, *source.parents) if is_there(path))
            volume = there.stat().st_dev
            for directory in self._directories:
                if directory.stat().st_dev == volume:
                    return directory
        except OSError as error:
            raise translated(error, source) from error
        raise _other_volume(source, self._directories[0])


def _makes(directory: Path) -> bool:
    """Create a directory of pins. Return whether it is new."""
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        return False
    except OSError as error:
        raise translated(error, directory) from error
    return True


def _pins_in(directory: Path) -> dict[int, Pin]:
    found: dict[int, Pin] = {}
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                base = parse_local_file_name(entry.name)
                if base is not None:
                    status = entry.stat()
                    is_last = status.st_nlink == 1
                    found[base] = Pin(Path(entry.path), status.st_size, is_last)
    except (FileNotFoundError, NotADirectoryError) as error:
        reason = "the pins' directory was removed, or is none: it is looked for again"
        raise Unavailable(reason, str(directory)) from error
    except OSError as error:
        raise translated(error, directory) from error
    return found


def _other_volume(source: Path, directory: Path) -> Denied:
    return Denied(
        f"tieredStorePinPath must have a directory on the volume of {source}, for pins are hard "
        "links: name one there",
        str(directory),
    )
