"""Providers: object stores, file segments over them, and the clock. All I/O is here.

The package does not depend on messages. Import from here to write a provider of your own.
`CONTRACT.md` beside this file specifies a storage, and `provider.testing` has the same promises
as tests.
"""

from provider.clock import Clock, SystemClock
from provider.errors import (
    AlreadyExists,
    Closed,
    Corrupt,
    Denied,
    Fenced,
    NotFound,
    OutOfRange,
    StoreError,
    Unavailable,
)
from provider.file_segments import (
    FileSegments,
    Placement,
    SegmentsDriver,
    SegmentSlice,
    SegmentsOwner,
)
from provider.names import check_name
from provider.object_store import Append, AppendingStore, Buffer, ObjectEntry, ObjectStore
from provider.ranges import ByteRange
from provider.stores.in_place_segments import InPlaceDriver
from provider.stores.packed_segments import PackedDriver

__all__ = [
    "AlreadyExists",
    "Append",
    "AppendingStore",
    "Buffer",
    "ByteRange",
    "Clock",
    "Closed",
    "Corrupt",
    "Denied",
    "Fenced",
    "FileSegments",
    "InPlaceDriver",
    "NotFound",
    "ObjectEntry",
    "ObjectStore",
    "OutOfRange",
    "PackedDriver",
    "Placement",
    "SegmentSlice",
    "SegmentsDriver",
    "SegmentsOwner",
    "StoreError",
    "SystemClock",
    "Unavailable",
    "check_name",
]
