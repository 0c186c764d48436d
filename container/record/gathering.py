"""Copy ranges of a buffer, in any order, by Arrow: without a step of Python for each range."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyarrow ships no types; what leaves `take_ranges` is a numpy array again.

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def take_ranges(
    raw: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    order: NDArray[np.int64],
) -> NDArray[np.uint8]:
    """The ranges number `order[0]`, `order[1]`, ... back to back: a copy, not to be written to.

    The ranges `[start, start + size)` ascend without overlapping and end with `raw`. Arrow knows
    how to do that for strings: gaps and ranges are named as alternate ones, and every other taken.
    It allocates what it takes, and asks for as much as if all were equally long, so give it
    pieces. 50-100 ns a range.
    """
    offsets = np.empty(2 * len(starts) + 1, np.int64)
    offsets[0] = 0
    offsets[1::2] = starts
    offsets[2::2] = starts + sizes
    strings = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        2 * len(starts),
        [None, pa.py_buffer(offsets), pa.py_buffer(raw[: offsets[-1]])],
    )
    taken = pc.take(strings, pa.array(2 * order + 1))
    return np.frombuffer(taken.buffers()[2], np.uint8, int(sizes[order].sum()))
