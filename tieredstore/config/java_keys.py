"""Keys of the Java tiered store that are accepted and have no effect; `config` says why."""

from collections.abc import Mapping

_NO_HEAP = "There is no Java heap; readAheadCacheSize bounds the cache."
_PLUG_IN = "Java classes are not loaded; the tier is a directory with a journal of its own."
_REFERENCES = "Waiting messages are bounded by tieredStoreWaitingMax and tieredStoreBytesInFlight."
_WINDOW = "The read-ahead window adapts to each reader."

JAVA_ONLY: Mapping[str, str] = {
    "tieredMetadataServiceProvider": _PLUG_IN,
    "tieredBackendServiceProvider": _PLUG_IN,
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
"""Each of these keys, and why it has no effect."""
