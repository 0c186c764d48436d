"""Opening of a store directory for writing."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from provider.clock import Clock
from provider.posix.files import posix_errors
from tieredstore.hot.appender import Appender
from tieredstore.hot.hot_log import HotLog
from tieredstore.hot.log.directory import StoreDirectory
from tieredstore.hot.options import HotWriteOptions
from tieredstore.lifetime import running

THREADS = 3
"""Threads besides the appending one: one syncs the CommitLog, one the ConsumeQueues, one reads."""


@asynccontextmanager
async def open_hot_log(
    root: Path, *, options: HotWriteOptions, clock: Clock
) -> AsyncGenerator[HotLog]:
    """Open or create a store directory (`storePathRootDir`) for writing.

    Takes some milliseconds after a clean shutdown. After a crash it scans all records since the
    last checkpoint. Leaving the block writes all accepted messages, makes them durable and marks
    the directory as closed, so that a Java broker may be started on it.

    Raises:
        InUse: another process writes it, or another log of this process.
        Denied: not allowed; or its files have other lengths than `options` say; or a broker keeps
            queues of other kinds in it.
        Corrupt: its records or topics contradict the format.
        Unavailable: it cannot be read or written now.
    """
    executor = ThreadPoolExecutor(THREADS, thread_name_prefix="hot-log")
    try:
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(executor, _opened, root, options, clock)
        try:
            appender = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
            raise
        log = HotLog(appender, clock=clock, executor=executor)
        try:
            async with running([log.flush_forever, log.flush_queues_forever]):
                yield log
        finally:
            await log.close()
    finally:
        executor.shutdown(wait=False)


def _opened(root: Path, options: HotWriteOptions, clock: Clock) -> Appender:
    with posix_errors(str(root)):
        where = Path(options.commit_log_path) if options.commit_log_path else None
        directory = StoreDirectory(root, where)
        try:
            return Appender(directory, options, clock)
        except BaseException:
            directory.close()
            raise


def _close_unused(opening: "asyncio.Future[Appender]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
