"""What helps a worker process of Spark that does many tasks."""

import gc
from functools import cache

from pyspark import TaskContext


@cache
def keep_what_is_loaded() -> None:
    """At the end of a worker's first task: leave all that is loaded out of later collections.

    Spark collects garbage in a worker after each task. Where numpy, Arrow, pandas and this package
    are loaded, that looks at some 300,000 objects, which never are garbage, and takes 35 ms.
    """
    if TaskContext.get() is not None:  # else this is no worker
        gc.collect()
        gc.freeze()
