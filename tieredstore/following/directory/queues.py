"""Queues of a store, found by the directories of its ConsumeQueues."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from container.names.queue_id import QueueId, check_path_component
from container.names.rocketmq import INT32_MAX
from provider.errors import Denied, StoreError, Unavailable
from tieredstore.following.directory.layout import (
    BATCH_CONSUME_QUEUE,
    StoreLayout,
    directories_in,
    is_of_the_process,
    read_topic_attributes,
    refused_topics,
)

SETTLED_NS = 10_000_000_000
"""Age in nanoseconds of a directory's times from which on a later change must alter them: it cannot
fall into the same tick of the clock."""


class DirectoryWatch:
    """Directories whose entries changed since they were last read.

    Times of directories have the resolution of a clock tick. So a directory that changed within the
    last `SETTLED_NS`, or has a time in the future, is read once more the next time.
    """

    def __init__(self, now_ns: Callable[[], int] | None = None) -> None:
        """`now_ns` returns the machine's time in Unix nanoseconds."""
        self._now_ns = now_ns or time.time_ns
        self._seen: dict[Path, tuple[tuple[int, ...], bool]] = {}

    def changed(self, directory: Path) -> bool:
        """Whether to read a directory now. One `stat`. A missing directory counts as unchanged.

        A caller that then fails to read it must `forget` it.
        """
        try:
            status = os.stat(directory)  # noqa: PTH116 - a third of Path.stat's time, often called
        except OSError:
            return self._seen.pop(directory, None) is not None
        now = (status.st_mtime_ns, status.st_ctime_ns, status.st_nlink, status.st_ino)
        before, is_sure = self._seen.get(directory, ((), False))
        if now == before and is_sure:
            return False
        changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
        self._seen[directory] = (now, now == before or changed_ns < self._now_ns() - SETTLED_NS)
        return True

    def forget(self, directory: Path) -> None:
        """Mark a directory as unread."""
        self._seen.pop(directory, None)


@dataclass(slots=True)
class FoundQueues:
    """Result of one scan of the directories."""

    queues: dict[QueueId, Path] = field(default_factory=dict[QueueId, Path])
    """Tierable queues and their directories."""
    refused: dict[QueueId, str] = field(default_factory=dict[QueueId, str])
    """Queues that cannot be tiered, each with a reason as a sentence."""
    excluded: set[str] = field(default_factory=set[str])
    """Topics that the filter excludes."""
    findings: set[str] = field(default_factory=set[str])
    """A sentence for each directory within a topic's that is not a queue's."""
    troubles: set[str] = field(default_factory=set[str])
    """A sentence for each topic whose directory cannot be read now."""


class QueueDirectories:
    """Scan for queues that reads again only the directories that changed."""

    def __init__(self, layout: StoreLayout, is_excluded: Callable[[str], bool]) -> None:
        self._layout = layout
        self._is_excluded = is_excluded
        self._watch = DirectoryWatch()
        self._topics: list[str] = []
        self._queues: dict[str, dict[QueueId, Path]] = {}
        self._findings: dict[str, set[str]] = {}
        self._troubles: dict[str, str] = {}
        self._directories: dict[str, Path] = {}
        self._volumes: dict[str, tuple[int, Path, frozenset[QueueId]]] = {}
        """Device, path and queues of each topic whose directory is on another volume than
        `root`."""
        self._refused: dict[str, str] = {}
        self._unjudged: set[str] = set()
        """A sentence for each place of refused topics that could not be read."""

    @property
    def root(self) -> Path:
        """Parent directory of all topics."""
        return self._layout.consume_queue

    def is_left_out(self, topic: str) -> bool:
        """Whether no queue of the topic is ever found: by the filter, or by its name."""
        return self._is_excluded(topic) or check_path_component(topic) is not None

    def is_away(self, queue: QueueId) -> bool:
        """Whether a queue that was not found may still exist on a volume that is away.

        This is so if its topic had a volume of its own that is not mounted, or not linked to. Two
        `stat`s for such a topic.
        """
        if queue.topic not in self._volumes:
            return False
        device, place, _ = self._volumes[queue.topic]
        try:
            is_there = place.stat().st_dev == device
        except OSError:
            return True
        return not is_there or os.path.lexists(place / str(queue.queue_id))

    def forget(self, topics: Iterable[str]) -> None:
        """Make the next scan read the directories of these topics again, and their parent."""
        self._watch.forget(self.root)
        for topic in topics:
            self._watch.forget(self.root / topic)

    def scan(self) -> FoundQueues:
        """Return all present queues. One `stat` for each topic if nothing changed.

        If a topic's directory cannot be read, its earlier queues remain.

        Raises:
            Unavailable, Denied: another directory cannot be read.
        """
        try:
            return self._look()
        except StoreError:
            self._watch = DirectoryWatch()  # unread directories stay unread
            raise

    def _look(self) -> FoundQueues:
        root = self._layout.consume_queue
        config = self._watch.changed(self._layout.root / "config")
        others = self._watch.changed(self._layout.root / BATCH_CONSUME_QUEUE)
        if self._watch.changed(root):
            self._topics = directories_in(root)
            self._directories = {topic: root / topic for topic in self._topics}
            others = True
        if config or others or self._unjudged:
            attributes = read_topic_attributes(self._layout)
            self._refused, self._unjudged = refused_topics(self._layout, attributes)
        found = FoundQueues(troubles=set(self._unjudged))
        for topic in self._topics:
            self._sort_topic(found, topic)
        for topic, sentence in self._refused.items():
            self._refuse(found, topic, sentence)
        return found

    def _sort_topic(self, found: FoundQueues, topic: str) -> None:
        if refuse_name(found, topic):
            return
        if self._is_excluded(topic):
            found.excluded.add(topic)
        elif topic not in self._refused:
            directory = self._directories[topic]
            if self._watch.changed(directory) or topic in self._troubles:
                self._try_topic(topic, directory)
            found.queues |= self._queues.get(topic, {})
            found.findings |= self._findings.get(topic, set())
            if topic in self._troubles:
                found.troubles.add(self._troubles[topic])

    def _try_topic(self, topic: str, directory: Path) -> None:
        self._troubles.pop(topic, None)
        try:
            self._read_topic(topic, directory)
        except (Unavailable, Denied) as error:
            if is_of_the_process(error):
                raise
            self._troubles[topic] = f"queues of {topic} are not looked for: {error}"

    def _read_topic(self, topic: str, directory: Path) -> None:
        names = directories_in(directory)
        ids = {name: queue_id for name in names if (queue_id := _queue_id(name)) is not None}
        self._queues[topic] = {
            QueueId(topic, queue_id): directory / name for name, queue_id in ids.items()
        }
        self._note_volume(topic, directory)
        self._findings[topic] = {
            f"{str(directory / name)!a} is no directory of a queue, for its name is no queue "
            "id: it is ignored."
            for name in names
            if name not in ids
        }

    def _note_volume(self, topic: str, directory: Path) -> None:
        """Record the volume of a topic's queues, unless queues that were on one are missing."""
        try:
            device = directory.stat().st_dev
            is_other = device != self.root.stat().st_dev
        except OSError:
            self._watch.forget(directory)  # it was deleted just now
            return
        there = frozenset(self._queues[topic])
        if is_other and there:
            self._volumes[topic] = (device, directory.resolve(), there)
        elif topic in self._volumes and self._volumes[topic][2] <= there:
            del self._volumes[topic]

    def _refuse(self, found: FoundQueues, topic: str, sentence: str) -> None:
        if refuse_name(found, topic):
            return
        if self._is_excluded(topic):
            found.excluded.add(topic)
            return
        directories = (self._layout.consume_queue, self._layout.root / BATCH_CONSUME_QUEUE)
        names = {name for parent in directories for name in _names_in(parent / topic)}
        ids = {queue_id for name in names if (queue_id := _queue_id(name)) is not None}
        for queue_id in ids or {0}:
            found.refused[QueueId(topic, queue_id)] = sentence


def _names_in(directory: Path) -> list[str]:
    """Return a refused topic's directories; none if they cannot be read, which hides nothing."""
    try:
        return directories_in(directory)
    except (Unavailable, Denied):
        return []


def refuse_name(found: FoundQueues, topic: str) -> bool:
    """Refuse a topic for its name. Return whether it was refused."""
    reason = check_path_component(topic)
    if reason is not None:
        sentence = f"Its name cannot be one component of a path, for {reason}."
    elif not topic.strip():
        sentence = f"Its name {topic!a} is blank; RocketMQ takes no such topic for one."
    else:
        return False
    shown = topic.encode("utf-8", "backslashreplace").decode()
    found.refused[QueueId(shown, 0)] = sentence
    return True


def _queue_id(name: str) -> int | None:
    """Parse a directory's name as a queue id; None if it is not one."""
    is_number = name.isascii() and name.isdigit() and len(name) <= len(str(INT32_MAX))
    return int(name) if is_number and str(int(name)) == name and int(name) <= INT32_MAX else None
