"""Lazy access to the Arrow functions, with a common error if pyarrow is missing."""

from types import ModuleType
from typing import Any

RecordBatch = Any
"""`pyarrow.RecordBatch`; pyarrow ships no types."""
RecordBatchReader = Any
"""`pyarrow.RecordBatchReader`."""
Dataset = Any
"""`pyarrow.dataset.Dataset`."""
Schema = Any
"""`pyarrow.Schema`."""


def import_arrow() -> ModuleType:
    """The module `arrow_batches`; 0.2 s at its first use.

    Raises:
        ImportError: Arrow is not installed; the message has the command.
    """
    try:
        from tieredstore.reader import arrow_batches  # noqa: PLC0415 - loaded on first use
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ImportError(
            "to_arrow needs pyarrow: pip install 'tieredstore[arrow]'", name="pyarrow"
        ) from error
    return arrow_batches
