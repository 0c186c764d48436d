"""Directories of a store's CommitLog: one, several, or none that can be read.

RocketMQ's `MultiPathMappedFileQueue` puts the file of number `n` into the `n % count`-th of the
directories that have room, in the order of their names, and reads all of them. A file's directory
is found by its name alone.
"""

from pathlib import Path

from container.names.rocketmq import parse_local_file_name
from provider.names import is_regular_file, is_there
from tieredstore.following.directory.layout import (
    COMMIT_LOG,
    CONSUME_QUEUE,
    RESTORING,
    UNFINISHED,
    NotAStore,
    StoreLayout,
    directories_in,
    files_in,
    leads_to_directory,
)
from tieredstore.following.options import HotLogOptions

SEPARATOR = ","
"""`rocketmq.broker.multiPathSplitter`, unless a broker sets another one."""
OLD_SEPARATOR = ":"
"""Separator of early versions."""
DLEDGER_PREFIX = "dledger-"
DLEDGER_DATA = "data"


def split_paths(text: str) -> list[Path]:
    """Split a setting into directories, each once. One `stat` for each name with a colon."""
    names = [name.strip() for name in text.split(SEPARATOR)]
    names = [part.strip() for name in names for part in _old_parts(name)]
    return [Path(name) for name in dict.fromkeys(names) if name]


def _old_parts(name: str) -> list[str]:
    if OLD_SEPARATOR not in name or leads_to_directory(Path(name)):
        return [name]
    return name.split(OLD_SEPARATOR)


def commit_log_directories(root: Path, options: HotLogOptions) -> tuple[Path, ...]:
    """Return the directories of a store's CommitLog, existing or not. Written ones come first."""
    written = split_paths(options.commit_log_path) or [root / COMMIT_LOG]
    read_only = split_paths(options.read_only_commit_log_paths)
    return tuple(dict.fromkeys([*written, *read_only]))


def refuse_dledger(root: Path, options: HotLogOptions) -> None:
    """Refuse a store whose records are in a DLedger log.

    Raises:
        NotAStore: its broker is configured so, or it has such a log and no file of a CommitLog.
        Denied, Unavailable: the directory cannot be read.
    """
    found = [
        root / name
        for name in directories_in(root)
        if name.startswith(DLEDGER_PREFIX) and leads_to_directory(root / name / DLEDGER_DATA)
    ]
    logs = commit_log_directories(root, options)
    if not options.in_dledger and (not found or any(files_in(log) for log in logs)):
        return
    raise NotAStore(
        "the broker keeps its CommitLog in DLedger (enableDLegerCommitLog), whose files have a "
        "header of their own before each record and are not followed: a broker in controller mode "
        "(enableControllerMode) replicates a CommitLog that is",
        str(found[0] if found else root),
    )


def _store_near(root: Path) -> Path | None:
    """Return the store that a directory belongs to or holds; None if there is none, or several."""
    if root.name == COMMIT_LOG:
        return root.parent
    found = [root / name for name in directories_in(root)]
    stores = [path for path in found if leads_to_directory(path / COMMIT_LOG)]
    return stores[0] if len(stores) == 1 else None


def open_layout(root: Path, options: HotLogOptions) -> StoreLayout:
    """Find the store's directories by names only. Opens nothing.

    Raises:
        NotAStore: `root` holds no RocketMQ store, or none that can be followed.
        Denied, Unavailable: it cannot be read.
    """
    if not leads_to_directory(root):
        why = "this is a file" if is_regular_file(root) else "no such directory"
        raise NotAStore(f"{why}: give the broker's storePathRootDir", str(root))
    if is_there(root / RESTORING):
        raise NotAStore(UNFINISHED, str(root))
    refuse_dledger(root, options)
    logs = commit_log_directories(root, options)
    if not any(map(leads_to_directory, logs)):
        near = _store_near(root)
        hint = (
            f": did you mean {near}?"
            if near
            else " and storePathCommitLog where that lies elsewhere"
        )
        raise NotAStore(
            "this is no RocketMQ store, for it has no CommitLog: give the broker's "
            f"storePathRootDir{hint}",
            str(logs[0]),
        )
    for log in logs:
        names = files_in(log)
        if names and all(parse_local_file_name(name) is None for name in names):
            raise NotAStore(
                "this is no RocketMQ store, for its CommitLog's files are not named by 20 digits",
                str(log),
            )
    return StoreLayout(root, logs, root / CONSUME_QUEUE)
