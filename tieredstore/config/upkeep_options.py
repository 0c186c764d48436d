"""The options of upkeep from effective settings."""

from collections.abc import Mapping
from typing import Any

from container.steps.options import UpkeepOptions
from tieredstore.config.building import Setting, build
from tieredstore.config.second_store import has_second_store, place_text

OBJECT_SNAPSHOT_AGE_S = 900.0
"""Seconds after which a snapshot replaces journal entries in an object store; on a directory 300.
Starting reads the entries after it: a dozen where rounds are as far apart as there."""
OBJECT_FINISH_ENTRIES_MAX = 6
"""Of which a clean end leaves fewer, there: with the snapshot and the listings, ten requests."""


def upkeep_options(settings: Mapping[str, Setting], *, is_object: bool) -> UpkeepOptions:
    """The options; some are not settings, and differ in an object store."""
    second: dict[str, Any] = {"offloads": has_second_store(settings)}
    second["offload_place"] = place_text(settings)
    if not is_object:
        return build(UpkeepOptions, settings, **second)
    return build(
        UpkeepOptions,
        settings,
        snapshot_age_s_max=OBJECT_SNAPSHOT_AGE_S,
        finish_entries_max=OBJECT_FINISH_ENTRIES_MAX,
        **second,
    )
