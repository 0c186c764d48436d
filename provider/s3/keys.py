"""Paths of the file system, `bucket/key`, and what a listing is asked for. Pure."""


def parse(path: str) -> tuple[str, str]:
    """Bucket and key; the key of a bucket itself is empty.

    Raises:
        FileNotFoundError: the path names no bucket.
    """
    bucket, _, key = path.partition("/")
    if not bucket:
        raise FileNotFoundError(2, "a path begins with a bucket", path)
    return bucket, key


def directory_of(prefix: str) -> str:
    """The part of a key's prefix that ends before its last slash: a client lists directories."""
    return prefix.rpartition("/")[0]


def start_after(prefix: str, after: str) -> str:
    """A key to start a listing after that misses none above `after` that begins with `prefix`.

    Some below come along; the caller leaves them out. The last character goes because there are
    services (SeaweedFS 4) that pass over all keys in a directory that has the very name.
    """
    return max(_without_last(prefix), _without_last(after))


def _without_last(key: str) -> str:
    return key[:-1] if len(key.rpartition("/")[2]) > 1 else directory_of(key)


def is_name(key: str) -> bool:
    """Whether a key is a path of segments that a file system can have."""
    return not any(part in {"", ".", ".."} for part in key.split("/"))
