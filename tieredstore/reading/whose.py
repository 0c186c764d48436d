"""Whose tier it is and where it lies: a part of the face of an open tier."""

from abc import ABC, abstractmethod
from pathlib import Path

from provider.stores.throttled import TransferLimits
from tieredstore.places import directory_of, local_directory
from tieredstore.reading.opened import OpenedTier


class WhoseTier(ABC):
    """What `ReadableTier` says of itself."""

    @property
    def cluster(self) -> str:
        """The broker's cluster."""
        return self._opened().config.cluster

    @property
    def broker(self) -> str:
        """The broker whose tier this is."""
        return self._opened().config.broker

    @property
    def directory(self) -> Path:
        """Where the broker's tier lies; ConfigError if that is no directory."""
        return local_directory(directory_of(self._opened().config))

    @property
    def location(self) -> str:
        """Where the broker's tier lies, as a path or a URL."""
        return str(directory_of(self._opened().config))

    @property
    def limits(self) -> TransferLimits:
        """Bytes a second from an object store: set them at any time."""
        return self._opened().config.limits

    @abstractmethod
    def _opened(self) -> OpenedTier: ...
