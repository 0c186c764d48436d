"""Layout of a store directory: kind, CommitLog directories, foreign files, topics, file errors."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import orjson

from container.names.rocketmq import local_file_name, parse_local_file_name
from provider.errors import Denied, NotFound, StoreError, Unavailable
from provider.names import is_directory, is_regular_file, is_there
from tieredstore.following.options import HotLogOptions

_OF_THE_PROCESS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def translated(error: OSError, path: Path) -> StoreError:
    """Translate an operating system error about a file of the hot log."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound("the broker deleted it meanwhile", str(path))
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return Denied(f"not allowed: {error.strerror}", str(path))
    return Unavailable(f"cannot be read now: {error.strerror}", str(path))


def is_of_the_process(error: StoreError) -> bool:
    """Whether an error is the process's, so that other files cannot be read now, either."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _OF_THE_PROCESS


TOPICS = os.path.join("config", "topics.json")  # noqa: PTH118 - a relative name for people, too
BROKER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
CLUSTER_PREFIX = "rmq_sys_REVIVE_LOG_"


@dataclass(frozen=True, slots=True)
class StoreNames:
    """Names of broker and cluster that a store was written under; empty if unknown."""

    brokers: tuple[str, ...] = ()
    """Several if the broker was renamed, or its topic table was copied from another one."""
    clusters: tuple[str, ...] = ()


def read_topic_table(root: Path) -> Mapping[str, Mapping[str, Any]]:
    """Read the topics' settings from `config/topics.json` or its `.bak`; empty without both."""
    for name in (TOPICS, f"{TOPICS}.bak"):
        path = root / name
        try:
            if not is_regular_file(path):
                continue  # reading a pipe would block forever
            table = orjson.loads(path.read_bytes())["topicConfigTable"]
            return {str(topic): dict(settings) for topic, settings in table.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # the broker replaces the file by renaming: the other one may be whole
    return {}


def read_store_names(root: Path) -> StoreNames:
    """Read the names of a store's broker and cluster. Blocks for one small file.

    At its start, a broker creates a topic whose name ends with its own name, and one with its
    cluster's. They are in the file from the first change of its topics on.
    """
    topics = read_topic_table(root)
    return StoreNames(_behind(BROKER_PREFIX, topics), _behind(CLUSTER_PREFIX, topics))


def _behind(prefix: str, topics: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(sorted(name.removeprefix(prefix) for name in topics if name.startswith(prefix)))


COMMIT_LOG = "commitlog"
CONSUME_QUEUE = "consumequeue"
BATCH_CONSUME_QUEUE = "batchconsumequeue"
ROCKSDB_CONSUME_QUEUE = "consumequeue_rocksdb"
ROCKSDB_CURRENT = "CURRENT"
"""Name of a file of every RocksDB database."""
CHECKPOINT = "checkpoint"
ABORT = "abort"
LOCK = "lock"
RESTORING = "restoring"
"""File of a directory that `restore` has not completed. It is no store yet."""
UNFINISHED = (
    "`tieredstore restore` has not completed this directory: run it again with the same arguments, "
    "or delete the directory"
)
CONFIRM_OFFSET_AT = 32
"""Offset of an int64 in the checkpoint, in bytes: replicas have confirmed the messages below it."""
_NOTHING_THERE = frozenset({errno.ENOENT, errno.ELOOP})
"""Errors of a name without a file or directory behind it."""


class NotAStore(Denied):
    """No RocketMQ store in the directory, or none that can be followed: name another one."""


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Directories of one store."""

    root: Path
    commit_logs: tuple[Path, ...]
    """Directories of the CommitLog, at least one. Those that the broker writes to come first."""
    consume_queue: Path

    @property
    def abort(self) -> Path:
        """File that a broker removes at a clean shutdown."""
        return self.root / ABORT

    @property
    def lock(self) -> Path:
        """File that a running broker has locked."""
        return self.root / LOCK

    @property
    def checkpoint(self) -> Path:
        """File with the broker's flushed and confirmed positions."""
        return self.root / CHECKPOINT


@dataclass(frozen=True, slots=True)
class FileRun:
    """Files of one CommitLog or ConsumeQueue, of equal length and named by their first byte."""

    directory: Path
    """Directory of the files that are not in `elsewhere`."""
    bases: tuple[int, ...]
    """First bytes, ascending."""
    file_bytes: int
    """Length of each file in bytes; 0 while there is none."""
    foreign: tuple[int, ...] = ()
    """First bytes in names of foreign files, at which no file of this length begins."""
    odd_lengths: tuple[tuple[int, int], ...] = ()
    """First bytes of the files that have another length, and that length."""
    elsewhere: Mapping[int, Path] = field(default_factory=dict[int, Path])
    """Directories of the files in other directories, by first byte."""
    doubles: tuple[Path, ...] = ()
    """Files whose name another directory has, too. The run has the other one."""

    def path_of(self, base: int) -> Path:
        """Return the path of the file that begins at `base`, existing or not."""
        return self.elsewhere.get(base, self.directory) / local_file_name(base)

    @property
    def end(self) -> int:
        """First byte after the last file."""
        return self.bases[-1] + self.file_bytes if self.bases else 0


def scan_run(directory: Path, unit_bytes: int = 1) -> FileRun:
    """List the files of a CommitLog or ConsumeQueue directory; see `scan_runs`."""
    return scan_runs((directory,), unit_bytes)


def scan_runs(directories: Sequence[Path], unit_bytes: int = 1) -> FileRun:
    """List the files of one run in one or several directories.

    Their length is that on which most files and distances between names agree, and the longest of
    equals. Empty files are omitted until the next scan, for the broker is creating them. Files that
    the broker deletes during the scan are omitted, too. A shorter file was truncated. It stays, and
    readers of its missing part get an error. Costs one scan a directory and one `stat` a file. A
    missing directory has no files.

    Raises:
        Unavailable, Denied: a directory cannot be read.
    """
    sizes: dict[int, int] = {}
    elsewhere: dict[int, Path] = {}
    doubles: list[Path] = []
    for directory in directories:
        for base, size in _wholefiles_in(directory):
            if base in sizes:
                doubles.append(directory / local_file_name(base))
                continue
            sizes[base] = size
            if directory != directories[0]:
                elsewhere[base] = directory
    first, found = directories[0], sorted(sizes.items())
    file_bytes = _length_of_all(found, unit_bytes)
    bases = tuple(base for base, _ in found if file_bytes and base % file_bytes == 0)
    foreign = tuple(base for base, _ in found if not file_bytes or base % file_bytes)
    odd = tuple((base, sizes[base]) for base in bases if sizes[base] != file_bytes)
    return FileRun(first, bases, file_bytes, foreign, odd, elsewhere, tuple(doubles))


def _wholefiles_in(directory: Path) -> list[tuple[int, int]]:
    """Return first bytes and lengths of the files in one directory that are not empty."""
    try:
        with os.scandir(directory) as entries:
            return [(base, size) for base, size in _sizes_by_base(entries) if size]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise translated(error, directory) from error


def _length_of_all(found: Sequence[tuple[int, int]], unit_bytes: int) -> int:
    """Return the length of a run's files; 0 if none has whole units.

    Some may be truncated or foreign.
    """
    votes = Counter(size for _, size in found if size % unit_bytes == 0)
    if len(votes) > 1:
        distances = Counter(b - a for (a, _), (b, _) in pairwise(found))
        votes = Counter({size: count + distances[size] for size, count in votes.items()})
    return max(votes, key=lambda size: (votes[size], size), default=0)


def _sizes_by_base(entries: Iterable[os.DirEntry[str]]) -> Iterator[tuple[int, int]]:
    for entry in entries:
        base = parse_local_file_name(entry.name)
        size = _file_size(entry) if base is not None else None
        if base is not None and size is not None:
            yield base, size


def read_topic_attributes(layout: StoreLayout) -> Mapping[str, Mapping[str, Any]]:
    """Read the topics' attributes from `config/topics.json` or its `.bak`; empty without both."""
    table = read_topic_table(layout.root)
    return {topic: _plain(settings.get("attributes")) for topic, settings in table.items()}


def _plain(attributes: object) -> dict[str, Any]:
    """Return the attributes without the `+` prefix of an administrator's change."""
    if not isinstance(attributes, dict):
        return {}
    named = cast("dict[str, Any]", attributes)
    return {key.lstrip("+"): value for key, value in named.items()}


def refused_topics(
    layout: StoreLayout, attributes: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, str], set[str]]:
    """Return topics that cannot be tiered, each with a reason as a sentence. A few scans.

    Returns:
        The topics, and a sentence for each place of such topics that cannot be read now. Nothing
        there would be tiered, so nothing needs to wait for it.

    Raises:
        Unavailable, Denied: nothing can be read now.
    """
    refused: dict[str, str] = {}
    troubles: set[str] = set()
    for topic in _names_or_trouble(directories_in, layout.root / BATCH_CONSUME_QUEUE, troubles):
        refused[topic] = BATCH_SENTENCE
    for topic, values in attributes.items():
        if values.get("queue.type") == "BatchCQ":
            refused[topic] = BATCH_SENTENCE
        if str(values.get("cleanup.policy", "")).upper() == "COMPACTION":
            refused[topic] = COMPACTION_SENTENCE
    return refused, troubles


def has_rocksdb_queues(layout: StoreLayout) -> bool:
    """Whether a broker keeps ConsumeQueues in RocksDB here, alone or beside files. Two `stat`s."""
    places = (layout.consume_queue, layout.root / ROCKSDB_CONSUME_QUEUE)
    return any(os.path.exists(place / ROCKSDB_CURRENT) for place in places)  # noqa: PTH110 - False where not allowed


def _names_or_trouble(
    names_in: Callable[[Path], list[str]], directory: Path, troubles: set[str]
) -> list[str]:
    try:
        return names_in(directory)
    except (Unavailable, Denied) as error:
        if is_of_the_process(error):
            raise
        troubles.add(f"topics that are not tiered are not looked for: {error}")
        return []


BATCH_SENTENCE = (
    "Its ConsumeQueue is a BatchCQ, with several messages at one offset; the tier takes one "
    "message per offset."
)
COMPACTION_SENTENCE = (
    "It is a compaction topic, whose messages are rewritten later; the tier never rewrites."
)


def directories_in(directory: Path) -> list[str]:
    """Return the names of the directories in one, sorted; none if it does not exist."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries if _is_directory(entry))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise translated(error, directory) from error


def leads_to_directory(path: Path) -> bool:
    """Whether a path is that of a directory, or of a link to one.

    Raises:
        Denied, Unavailable: this cannot be determined.
    """
    try:
        return is_directory(path)
    except OSError as error:
        raise translated(error, path) from error


def files_in(directory: Path) -> list[str]:
    """Return the names of the files in a directory; none if there is no such directory.

    Raises:
        Denied, Unavailable: it cannot be read.
    """
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if _file_size(entry) is not None]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise translated(error, directory) from error


def _file_size(entry: os.DirEntry[str]) -> int | None:
    """Return the size of a regular file; None for other kinds, link loops and deleted files."""
    try:
        return entry.stat().st_size if entry.is_file() else None
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return None
        raise


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return False
        raise


def odd_files(run: FileRun) -> list[str]:
    """Describe each file of another length, of a wrong name, or of a duplicate name. Pure."""
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
    """Describe each name that has not 20 digits, or is not that of a file.

    One scan. Empty if the directory is missing.

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
