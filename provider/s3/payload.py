"""What a write is given and a listing says, in the client's terms. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obstore import ObjectMeta

    from provider.s3.listing import Listed

Part = bytes | bytearray | memoryview
Info = dict[str, Any]


def payload(value: Part | Sequence[Part]) -> tuple[Any, int]:
    """What the client is given, without a copy, and its length in bytes."""
    parts = (value,) if isinstance(value, bytes | bytearray | memoryview) else tuple(value)
    views = [memoryview(part).cast("B") for part in parts if len(part)]
    size_bytes = sum(view.nbytes for view in views)
    if not views:
        return b"", 0
    return (views[0] if len(views) == 1 else iter(views)), size_bytes


def info_of(path: str, found: "ObjectMeta") -> Info:
    """What fsspec says of a file; e-tag and time by the names that S3 has for them."""
    kept: Mapping[str, Any] = found
    return {
        "name": path,
        "size": kept["size"],
        "type": "file",
        "ETag": kept["e_tag"],
        "LastModified": kept["last_modified"],
    }


def info_of_listed(bucket: str, found: "Listed") -> Info:
    """What fsspec says of a file that was listed."""
    return {
        "name": f"{bucket}/{found.key}",
        "size": found.size,
        "type": "file",
        "ETag": found.e_tag,
        "LastModified": datetime.fromisoformat(found.modified) if found.modified else None,
    }


def directory(path: str) -> Info:
    """What fsspec says of a directory: names have one before a slash, and S3 knows of none."""
    return {"name": path, "size": 0, "type": "directory"}
