"""Retention of each topic in the tier, from its broker's `config/topics.json`."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from container.tier import Tier
from provider.clock import Clock
from provider.errors import Unavailable
from tieredstore.following.directory.layout import read_topic_table
from tieredstore.hot.log.topics import RESERVE_TIME

LOOK_S = 60.0
"""Seconds between two polls of the file."""


def hours_of(table: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    """Return the hours by topic; -1 for a topic without a whole number above 0. Pure."""
    found: dict[str, int] = {}
    for topic, settings in table.items():
        attributes: object = settings.get("attributes")
        is_map = isinstance(attributes, Mapping)
        text = str(cast("Mapping[str, object]", attributes).get(RESERVE_TIME) if is_map else None)
        is_number = text.isascii() and text.isdecimal() and len(text) < 10  # noqa: PLR2004 - 1e9 h
        found[topic] = int(text) if is_number and int(text) > 0 else -1
    return found


async def topic_hours(root: Path) -> dict[str, int]:
    """Return the hours by topic in the table of the store `root`; empty if it cannot be read."""
    return hours_of(await asyncio.to_thread(read_topic_table, root))


async def keep_topic_times(root: Path, tier: Tier, clock: Clock) -> None:
    """Publish the table of the store `root`, now and after each change, until cancelled.

    Raises:
        Fenced: a newer owner has the tier.
    """
    while True:
        hours = await topic_hours(root)
        with suppress(Unavailable):  # the next look tries again
            await tier.set_retention(hours)
        await clock.sleep(LOOK_S)
