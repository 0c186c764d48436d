"""The page of one follower: what is counted, whose it is, and where it is served."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, ProcessCollector

from tieredstore.config.effective import Config
from tieredstore.metrics.families import LabelledMetrics, TieringMetrics
from tieredstore.metrics.health import unready_reason
from tieredstore.metrics.moment import Moment
from tieredstore.metrics.page import LoopCalls, Pages, served
from tieredstore.version import VERSION


def metrics_of(
    config: Config, look: Callable[[], Moment], counted: CollectorRegistry
) -> CollectorRegistry:
    """All metrics of a follower. To be called on its event loop; `look` is called on it, too.

    `counted` are the metrics that count by themselves.
    """
    loop = LoopCalls(asyncio.get_running_loop())
    process = CollectorRegistry()
    ProcessCollector(registry=process)
    tiering = TieringMetrics(lambda: loop.call(look), VERSION)
    labels = {"cluster": config.cluster, "node_id": config.broker}
    metrics = CollectorRegistry()
    parts = (tiering, counted, process)
    metrics.register(LabelledMetrics(parts, labels, medium=medium_of(config)))
    return metrics


def medium_of(config: Config) -> str:
    """What RocketMQ's metrics call the kind of storage that a tier lies in. Pure."""
    return "blob" if config.in_object_store else "posix"


@asynccontextmanager
async def served_metrics(
    config: Config, look: Callable[[], Moment], metrics: CollectorRegistry
) -> AsyncGenerator[None]:
    """Serve a follower's pages while the block runs, if `tieredStoreMetricsPort` is set.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    loop = LoopCalls(asyncio.get_running_loop())
    pages = Pages(metrics, loop, lambda: unready_reason(look()))
    async with served(config.metrics_host, config.metrics_port, pages):
        yield
