"""`config/storeIdentity.json`: the broker that a store is of, and whether it has a tier.

The file is ours; a Java broker does not read it. A store of an older version gets it when it is
opened with a configuration.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple, cast

from provider.names import is_regular_file
from tieredstore.hot.files import replace_file

IDENTITY = Path("config", "storeIdentity.json")


class StoreIdentity(NamedTuple):
    """The broker of a store directory."""

    cluster: str
    broker: str
    has_tier: bool
    """Whether a tier was configured once, so that messages wait for it."""


def read_identity(root: Path) -> StoreIdentity | None:
    """The identity of the store in `root`; None if the file is not there or has another form.

    Raises:
        OSError: it cannot be read.
    """
    path = root / IDENTITY
    if not is_regular_file(path):
        return None
    try:
        row = cast("dict[str, Any]", json.loads(path.read_bytes()))
        return StoreIdentity(str(row["cluster"]), str(row["broker"]), row["hasTier"] is True)
    except (ValueError, KeyError, TypeError):
        return None


def write_identity(root: Path, identity: StoreIdentity) -> None:
    """Replace the file if it has another identity. Durable. The directory is locked by the caller.

    A store that had a tier keeps `has_tier`, for messages may wait for it.

    Raises:
        OSError: it cannot be written; the old file is there.
    """
    known = read_identity(root)
    if known is not None and known.has_tier:
        identity = identity._replace(has_tier=True)
    if known != identity:
        row = {"cluster": identity.cluster, "broker": identity.broker, "hasTier": identity.has_tier}
        replace_file(root / IDENTITY, json.dumps(row, ensure_ascii=False, indent="\t").encode())
