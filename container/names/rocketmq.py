"""RocketMQ's names of directories and files, formatted and parsed.

```
<hash8(cluster)>_<cluster>/<broker>/<topic>/<queue id>/COMMIT_LOG/<hash8(base)><base>
<hash8(cluster)>_<cluster>/<broker>/<topic>/<queue id>/CONSUME_QUEUE/<hash8(base)><base>
<hash8(cluster)>_<cluster>/<broker>/rmq_sys_INDEX/0/INDEX/<hash8(base)><base>
```
Segment names here are relative to the broker's directory.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache

from container.names.queue_id import QueueId, SegmentType, check_path_component

INDEX_TOPIC = "rmq_sys_INDEX"
INDEX_QUEUE = QueueId(INDEX_TOPIC, 0)
BASE_DIGITS = 20
HASH_DIGITS = 8
INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
NAMES_KEPT_MAX = 4096
"""Cached file names, some 150 bytes each. An MD5 hash costs at least 2 us."""

_COMPONENTS = 4
_DIGITS = re.compile(r"[0-9]+", re.ASCII)


def hash8(text: str) -> str:
    """First 8 hex digits of the MD5 of the text in UTF-8."""
    digest = hashlib.md5(text.encode(), usedforsecurity=False)
    return digest.hexdigest()[:HASH_DIGITS]


def cluster_directory(cluster: str) -> str:
    """Name of a cluster's directory under the tier's root."""
    return f"{hash8(cluster)}_{cluster}"


def parse_cluster_directory(name: str) -> str | None:
    """Cluster of a directory name. None if the name is no cluster's."""
    cluster = name[HASH_DIGITS + 1 :]
    if check_path_component(cluster) is not None or cluster_directory(cluster) != name:
        return None
    return cluster


def broker_directory(cluster: str, broker: str) -> str:
    """Path of a broker's directory under the tier's root."""
    return f"{cluster_directory(cluster)}/{broker}"


@lru_cache(maxsize=NAMES_KEPT_MAX)
def base_file_name(base: int) -> str:
    """File name of the segment that begins at byte `base` of its flat file; 28 characters."""
    assert 0 <= base <= INT64_MAX, f"not a base: {base}"
    return f"{hash8(str(base))}{base:0{BASE_DIGITS}d}"


def parse_base_file_name(name: str) -> int | None:
    """Base in a segment's file name. None for any other name."""
    base = parse_local_file_name(name[HASH_DIGITS:])
    return base if base is not None and base_file_name(base) == name else None


def local_file_name(start: int) -> str:
    """Name of a file of the local CommitLog or ConsumeQueue: its first byte in 20 digits."""
    assert 0 <= start <= INT64_MAX, f"not a start: {start}"
    return f"{start:0{BASE_DIGITS}d}"


def parse_local_file_name(name: str) -> int | None:
    """First byte in a local file's name. None for any other name."""
    if len(name) != BASE_DIGITS or not _DIGITS.fullmatch(name):
        return None
    start = int(name)
    return start if start <= INT64_MAX else None


@dataclass(frozen=True, slots=True)
class SegmentName:
    """Parsed path of a segment. `parse_segment_name(str(name)) == name`."""

    queue: QueueId
    type: SegmentType
    base: int

    def __str__(self) -> str:
        return segment_name(self.queue, self.type, self.base)


def segment_name(queue: QueueId, segment_type: SegmentType, base: int) -> str:
    """Path of a queue's segment, relative to the broker's directory."""
    topic, queue_id = queue
    return f"{topic}/{queue_id}/{segment_type.name}/{base_file_name(base)}"


def index_name(base: int) -> str:
    """Path of a sealed index file, relative to the broker's directory."""
    return segment_name(INDEX_QUEUE, SegmentType.INDEX, base)


def parse_segment_name(path: str) -> SegmentName | None:
    """Parse a path relative to the broker's directory. None if it is not a segment's."""
    components = path.split("/")
    if len(components) != _COMPONENTS:
        return None
    topic, queue_text, type_name, file_name = components
    base = parse_base_file_name(file_name)
    if base is None or check_path_component(topic) or type_name not in SegmentType.__members__:
        return None
    if len(queue_text) > len(str(INT32_MAX)) or not _DIGITS.fullmatch(queue_text):
        return None
    name = SegmentName(QueueId(topic, int(queue_text)), SegmentType[type_name], base)
    if int(queue_text) > INT32_MAX or str(name) != path:
        return None
    is_index = name.type is SegmentType.INDEX
    return name if is_index == (name.queue == INDEX_QUEUE) else None
