"""One daemon thread for the blocking calls of a disk cache.

A thread of an executor would keep the process from ending while a call hangs in the disk.
"""

from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")
_Job = tuple[Callable[[], Any], "Future[Any]"]


class DiskThread:
    """Runs calls in the order of their submission; begins with the first one."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._is_begun = False

    def submit(self, work: Callable[[], ResultT]) -> "Future[ResultT]":
        """Queue a call. The future gets its outcome."""
        future: Future[ResultT] = Future()
        self._jobs.put((work, future))
        if not self._is_begun:
            self._is_begun = True
            arguments = (self._jobs,)
            Thread(target=_run, args=arguments, daemon=True, name="tieredstore-disk-cache").start()
        return future

    def end(self) -> None:
        """End the thread after the queued calls; returns at once."""
        self._jobs.put(None)


def _run(jobs: "SimpleQueue[_Job | None]") -> None:
    while job := jobs.get():
        work, future = job
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by the caller that waits
            future.set_exception(error)
        del job, work, future  # an idle thread keeps nothing alive
