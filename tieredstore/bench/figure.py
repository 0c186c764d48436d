"""Measurements: messages and bytes, with their time and CPU time."""

import gc
import mmap
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np


@dataclass(slots=True)
class Elapsed:
    """Time and CPU time of a block; zero until it is left."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    """User and system time of this process, all its threads included."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Measurement of a metric in a round."""

    metric: str
    messages: int
    """0 for raw limits, which know no messages."""
    bytes: int
    """Bytes of records, and of units if they are written too."""
    seconds: float
    cpu_seconds: float

    @property
    def messages_s(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds

    @property
    def bytes_s(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU for each message; 0 if the number of messages is unknown."""
        return 1e6 * self.cpu_seconds / self.messages if self.messages else 0.0


def settle(memory_bytes: int = 0) -> None:
    """Write back every dirty page of the machine, and free garbage, before something is timed.

    Blocks without a bound until the device has all bytes. Otherwise the measured part would share
    the disk with earlier writes. Then touches and frees `memory_bytes` of memory, at most half of
    the free memory: the host of a virtual machine may reclaim memory that is free for some
    seconds, and the next touch of it costs 2 ms of CPU time a MiB (decision 0012). Must not run in
    a process whose memory is measured.
    """
    gc.collect()
    os.sync()
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    np.empty(min(memory_bytes, free_bytes // 2), np.uint8)[:: mmap.PAGESIZE] = 0


@contextmanager
def stopwatch() -> Generator[Elapsed]:
    """Measure a block; yield its result, which is filled in when the block is left."""
    elapsed = Elapsed()
    cpu_started = time.process_time()
    started = time.perf_counter()
    yield elapsed
    elapsed.seconds = time.perf_counter() - started
    elapsed.cpu_seconds = time.process_time() - cpu_started
