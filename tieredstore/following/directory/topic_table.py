"""The broker's table of topics, `config/topics.json`, and whose store it says this is."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from provider.names import is_regular_file

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
