"""What lies in a CommitLog's directory and is no whole file of the CommitLog."""

import os
from pathlib import Path

from container.names.rocketmq import parse_local_file_name
from tieredstore.following.directory.layout import FileRun
from tieredstore.following.file_errors import translated


def odd_files(run: FileRun) -> list[str]:
    """A sentence for each file of another length, of a wrong name, or of a name twice. Pure."""
    if not run.foreign and not run.odd_lengths and not run.doubles:
        return []
    length = run.file_bytes
    return (
        [
            f"{run.path_of(base)} is no file of the CommitLog, whose files have {length} "
            "bytes and names that are multiples of that: it is ignored."
            for base in run.foreign
        ]
        + [
            f"{run.path_of(base)} has {size} bytes and the CommitLog's files {length}: "
            "messages that it lacks cannot be tiered."
            for base, size in run.odd_lengths
        ]
        + [
            f"{path} is ignored, for another directory of the CommitLog has a file of that name."
            for path in run.doubles
        ]
    )


def odd_entries(directory: Path) -> list[str]:
    """A sentence for each name that is none of 20 digits, or is not that of a file.

    One scan. None where the directory is away.

    Raises:
        Unavailable, Denied: it cannot be read.
    """
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if _is_odd(entry))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise translated(error, directory) from error
    return [
        f"{str(directory / name)!a} is no file of the CommitLog, whose files are named by 20 "
        "digits: it is ignored."
        for name in names
    ]


def _is_odd(entry: os.DirEntry[str]) -> bool:
    if parse_local_file_name(entry.name) is None:
        return True
    if entry.is_symlink():
        return not os.path.isfile(entry.path)  # noqa: PTH113 - False where a loop would raise
    return not entry.is_file(follow_symlinks=False)  # by the listing: it may have gone since
