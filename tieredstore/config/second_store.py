"""Location of the second store in the configuration."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from container.names.rocketmq import broker_directory
from tieredstore.config.location import OFFLOAD_PATH, Location, TierUrl, location_at
from tieredstore.config.sources import ConfigError, Setting

if TYPE_CHECKING:
    from tieredstore.config.effective import Config


def second_location(config: "Config") -> Location | None:
    """Return the location of the second store of the configured broker; None without one.

    Raises:
        ConfigError: the setting is no location, or one of the two stores contains the other.
    """
    setting = config.settings[OFFLOAD_PATH]
    if not setting.value:
        return None
    place, first = location_at(str(setting.value)), config.tier_root
    _refuse_overlap(setting, place, first)
    return place / broker_directory(config.cluster, config.broker)


def refuse_linked_stores(config: "Config") -> None:
    """Refuse two directories of which one contains the other, links resolved. Blocks.

    Raises:
        ConfigError: one contains the other, or the second store is no location.
    """
    setting = config.settings[OFFLOAD_PATH]
    if not setting.value:
        return
    both = [location_at(str(setting.value)), config.tier_root]
    place, other = (Path(os.path.realpath(one)) if isinstance(one, Path) else one for one in both)
    _refuse_overlap(setting, place, other)


def _refuse_overlap(setting: Setting, place: Location, first: Location) -> None:
    if _overlap(place, first):
        raise ConfigError(
            f"{OFFLOAD_PATH} ({setting.origin}) and tieredStoreFilePath lie inside one another: "
            f"give the second store a place of its own"
        )


def _overlap(one: Location, other: Location) -> bool:
    if isinstance(one, TierUrl) and isinstance(other, TierUrl):
        places = [f"{place}/" for place in (one, other)]
        return places[0].startswith(places[1]) or places[1].startswith(places[0])
    if isinstance(one, Path) and isinstance(other, Path):
        paths = [Path(os.path.normpath(path)) for path in (one, other)]  # no link is followed
        return paths[0].is_relative_to(paths[1]) or paths[1].is_relative_to(paths[0])
    return False
