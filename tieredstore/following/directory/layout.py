"""Layout of a store directory: its kind, foreign files, topics, tierable queues."""

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
from provider.errors import Denied, Unavailable
from provider.names import is_directory, is_regular_file
from tieredstore.following.file_errors import is_of_the_process, translated

TOPICS = os.path.join("config", "topics.json")  # noqa: PTH118 - a relative name for people, too
BROKER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"
CLUSTER_PREFIX = "rmq_sys_REVIVE_LOG_"


@dataclass(frozen=True, slots=True)
class StoreNames:
    """The names under which a broker wrote a store, oldest unknown; empty where it says none."""

    brokers: tuple[str, ...] = ()
    """Several if the broker was renamed, or its table was copied from another one."""
    clusters: tuple[str, ...] = ()


def read_topic_table(root: Path) -> Mapping[str, Mapping[str, Any]]:
    """Every topic's settings in `config/topics.json`; empty if neither it nor `.bak` helps."""
    for name in (TOPICS, f"{TOPICS}.bak"):
        path = root / name
        try:
            if not is_regular_file(path):
                continue  # reading a pipe would wait for ever
            table = orjson.loads(path.read_bytes())["topicConfigTable"]
            return {str(topic): dict(settings) for topic, settings in table.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # the broker replaces the file by renaming: the other one may be whole
    return {}


def read_store_names(root: Path) -> StoreNames:
    """The broker and cluster that a store is of. Blocks for one small file.

    A broker makes a topic of its own with its name at the end, and one with its cluster's, when it
    starts. They are in the file from the first change of its topics on.
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
"""A file of every RocksDB database."""
CHECKPOINT = "checkpoint"
ABORT = "abort"
LOCK = "lock"
CONFIRM_OFFSET_AT = 32
"""Int64 in the checkpoint: messages below it are confirmed by the replicas."""
_NOTHING_THERE = frozenset({errno.ENOENT, errno.ELOOP})
"""Errors of a name that leads to no file or directory."""


class NotAStore(Denied):
    """Name another directory: this one holds no RocketMQ store, or none that can be followed."""


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """The directories of one store."""

    root: Path
    commit_logs: tuple[Path, ...]
    """The directories of the CommitLog, at least one; the ones that the broker writes to first."""
    consume_queue: Path

    @property
    def abort(self) -> Path:
        """The file that a broker removes when it stops cleanly."""
        return self.root / ABORT

    @property
    def lock(self) -> Path:
        """The file that a running broker has locked."""
        return self.root / LOCK

    @property
    def checkpoint(self) -> Path:
        """The file with the broker's flushed and confirmed positions."""
        return self.root / CHECKPOINT


@dataclass(frozen=True, slots=True)
class FileRun:
    """The files of one CommitLog or ConsumeQueue: equally long, named by their first byte."""

    directory: Path
    """Of those that are not `elsewhere`."""
    bases: tuple[int, ...]
    """First bytes, ascending."""
    file_bytes: int
    """Length of each; 0 while there is none."""
    foreign: tuple[int, ...] = ()
    """First bytes that other files' names say, which no file of this length begins at."""
    odd_lengths: tuple[tuple[int, int], ...] = ()
    """First bytes of the files that have another length, and that length."""
    elsewhere: Mapping[int, Path] = field(default_factory=dict[int, Path])
    """Directories of the files in another one, by first byte."""
    doubles: tuple[Path, ...] = ()
    """Files whose name another directory has, too; that one is in the run."""

    def path_of(self, base: int) -> Path:
        """Where the file that begins at `base` lies, or would."""
        return self.elsewhere.get(base, self.directory) / local_file_name(base)

    @property
    def end(self) -> int:
        """First byte after the last file."""
        return self.bases[-1] + self.file_bytes if self.bases else 0


def scan_run(directory: Path, unit_bytes: int = 1) -> FileRun:
    """The files of a CommitLog or ConsumeQueue directory, as they are now; see `scan_runs`."""
    return scan_runs((directory,), unit_bytes)


def scan_runs(directories: Sequence[Path], unit_bytes: int = 1) -> FileRun:
    """The files of one run that lie in one directory or several, as they are now.

    Their length is the one that most files and distances between names agree on, and among equals
    the longest. An empty file is one that the broker is just creating: it is left out until the
    next look, and so is one that the broker deletes during this one. A shorter file was truncated;
    it stays, and readers of what is missing find that out. One scan a directory and one `stat` a
    file. A directory that is not there has no files.

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
    """First bytes and lengths of the files in one directory that are not empty."""
    try:
        with os.scandir(directory) as entries:
            return [(base, size) for base, size in _sizes_by_base(entries) if size]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise translated(error, directory) from error


def _length_of_all(found: Sequence[tuple[int, int]], unit_bytes: int) -> int:
    """Length of a run's files; 0 if none has whole units. Some may be truncated or foreign."""
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
    """Attributes of every topic in `config/topics.json`; empty if neither it nor `.bak` helps."""
    table = read_topic_table(layout.root)
    return {topic: _plain(settings.get("attributes")) for topic, settings in table.items()}


def _plain(attributes: object) -> dict[str, Any]:
    """The attributes without the sign that an administrator's change carries."""
    if not isinstance(attributes, dict):
        return {}
    named = cast("dict[str, Any]", attributes)
    return {key.lstrip("+"): value for key, value in named.items()}


def refused_topics(
    layout: StoreLayout, attributes: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, str], set[str]]:
    """Topics that the tier does not take, each with one sentence that says why. A few scans.

    Returns:
        Those, and a sentence for each other place where such topics would be, but which cannot
        be read now: none of what lies there would be tiered, so nothing need wait for it.

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
    """Names of the directories in one, sorted; none if it does not exist."""
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
        Denied, Unavailable: that cannot be told.
    """
    try:
        return is_directory(path)
    except OSError as error:
        raise translated(error, path) from error


def files_in(directory: Path) -> list[str]:
    """Names of the files in a directory; none if there is no such directory.

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
    """Bytes of a regular file; None for anything else, a loop of links, and what just went."""
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
