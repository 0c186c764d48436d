"""How a tier is read, from effective settings."""

from collections.abc import Mapping
from pathlib import Path

from fetcher.options import FetcherOptions
from provider.options import DiskCacheOptions, RangeOptions
from tieredstore.config.building import Setting, build
from tieredstore.config.sources import ConfigError


def fetcher_options(settings: Mapping[str, Setting]) -> FetcherOptions:
    """How messages are read ahead and cached.

    Raises:
        ConfigError: the cache cannot hold one read.
    """
    cache, run = settings["readAheadCacheSize"], settings["readAheadMessageSizeThreshold"]
    if int(cache.value) < int(run.value):
        raise ConfigError(
            f"readAheadCacheSize ({cache.origin}) must hold one read of "
            f"readAheadMessageSizeThreshold, {run.value} bytes, not {cache.value}"
        )
    extent_bytes_max = int(settings["tieredStoreExtentMaxSize"].value)
    return build(FetcherOptions, settings, extent_bytes_max=extent_bytes_max)


def range_options(settings: Mapping[str, Setting]) -> RangeOptions:
    """The gap is the fetcher's: what it reads over, storage reads over."""
    gap_bytes_max = int(settings["readAheadGapSize"].value)
    return build(RangeOptions, settings, gap_bytes_max=gap_bytes_max)


def disk_cache_options(settings: Mapping[str, Setting]) -> DiskCacheOptions:
    """What is kept on disk of an object store; nothing without a directory."""
    path = str(settings["readAheadDiskCachePath"].value)
    return build(DiskCacheOptions, settings, directory=Path(path) if path else None)
