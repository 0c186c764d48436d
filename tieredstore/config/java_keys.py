"""Keys of the Java tiered store that mean nothing here: accepted, and `config` says why."""

from collections.abc import Mapping

_NO_HEAP = "Java's heap has no counterpart here; readAheadCacheSize bounds the cache."
_NO_INDEX = "No key index is built yet."
_NO_RETENTION = "Retention is not done yet: nothing is deleted from the tier."
_PLUG_IN = "Java classes are not loaded; the tier is a directory, the metadata its journal."
_REFERENCES = "Waiting messages are bounded by tieredStoreWaitingMax and tieredStoreBytesInFlight."
_WINDOW = "The read-ahead window adapts itself."

JAVA_ONLY: Mapping[str, str] = {
    "messageStorePlugIn": _PLUG_IN,
    "tieredMetadataServiceProvider": _PLUG_IN,
    "tieredBackendServiceProvider": _PLUG_IN,
    "tieredStoreIndexFileMaxHashSlotNum": _NO_INDEX,
    "tieredStoreIndexFileMaxIndexNum": _NO_INDEX,
    "tieredStoreIndexFileRollingIdleInterval": _NO_INDEX,
    "tieredStoreDeleteFileEnable": _NO_RETENTION,
    "tieredStoreFileReservedTime": _NO_RETENTION,
    "tieredStoreDeleteFileInterval": _NO_RETENTION,
    "tieredStoreMaxGroupCommitCount": _REFERENCES,
    "tieredStoreMaxPendingLimit": _REFERENCES,
    "tieredStoreDispatchMinFreeMemoryRatio": _REFERENCES,
    "tieredStoreDispatchMinFreeMemoryMaxBytes": _REFERENCES,
    "readAheadMinFactor": _WINDOW,
    "readAheadMaxFactor": _WINDOW,
    "readAheadBatchSizeFactorThreshold": _WINDOW,
    "readAheadCacheSizeThresholdRate": _NO_HEAP,
    "readAheadCacheCreateExpireDuration": _NO_HEAP,
    "readAheadCacheAfterReadExpireDuration": _NO_HEAP,
}
"""Keys of the Java tiered store that are accepted and change nothing here, each with the reason."""
