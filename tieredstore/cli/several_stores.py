"""`tieredstore tier` of several stores: a follower for each, whose failure leaves the others."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from container.names.rocketmq import broker_directory
from provider.clock import Clock
from provider.errors import Closed, Fenced
from provider.names import is_regular_file
from tieredstore.cli.failures import explain
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.logs import BROKER
from tieredstore.cli.signals import EndingSignals, answer_watchdog
from tieredstore.cli.streams import OWNED, WRONG_USE
from tieredstore.cli.tier_run import RunOutcome, beside_of, follow_until, tier_once
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.console.options import console_beside
from tieredstore.follower import Follower
from tieredstore.lifetime import running
from tieredstore.metrics.families import Moment, Opening, TieringMetrics
from tieredstore.metrics.page import (
    LoopCalls,
    labelled_metrics,
    merged,
    served_pages,
    unready_reason,
)
from tieredstore.serve.beside import ServerBeside
from tieredstore.serve.beside import unready_reason as unready_part
from tieredstore.serve.options import PORT as SERVE_PORT
from tieredstore.session.identity import names_of
from tieredstore.session.places import directory_of
from tieredstore.version import VERSION

LOGGER = logging.getLogger("tieredstore.cli")
RETRY_S = 10.0
"""Seconds from the end of a failed follower to its next start."""
LASTING = frozenset({WRONG_USE, OWNED})
"""Exit statuses of one store after which its follower is not started again."""
OF_ONE_STORE = (
    "storePathCommitLog", "readOnlyCommitLogStorePaths", "tieredStorePinPath", SERVE_PORT,
)  # fmt: skip
"""Keys that two stores cannot have with the same value."""
NAME = "brokerName"


def configured_store(config: Config) -> Path:
    """Return `storePathRootDir`.

    Raises:
        ConfigError: it is not given.
    """
    if not config.gives("storePathRootDir"):
        raise ConfigError(
            "the broker's store is not named: give STORE_DIR, or storePathRootDir in the file "
            "given to --conf"
        )
    return config.store_dir


def brokers_of(
    invocation: Invocation, stores: Sequence[Path], brokers: Sequence[str]
) -> list[tuple[Config, Path]]:
    """Configurations of several stores. Reads files.

    `stores` are directories, whose brokers `brokers` names in the same order, or configuration
    files of brokers.

    Raises:
        ConfigError: a store or its broker is not named, or two stores share a tier or a directory.
    """
    found = _named(invocation, stores, brokers) if brokers else _by_files(invocation, stores)
    owners: dict[str, Path] = {}
    for config, store in found:
        where = str(directory_of(config))
        other = owners.setdefault(where, store)
        if other is not store:
            raise ConfigError(
                f"{other} and {store} would have one tier, "
                f"{broker_directory(config.cluster, config.broker)}: give each its own broker name"
            )
    for key in OF_ONE_STORE:
        values = [one.settings[key].value for one, _ in found if one.settings[key].value]
        if len(set(values)) < len(values):
            raise ConfigError(
                f"{key} is the same for several stores: give the brokers' configuration files, "
                "each with its own, in place of their directories"
            )
    return found


def _named(
    invocation: Invocation, stores: Sequence[Path], brokers: Sequence[str]
) -> list[tuple[Config, Path]]:
    if len(brokers) != len(stores):
        raise ConfigError(
            f"{len(stores)} stores and {len(brokers)} names: give one --broker for each store, in "
            "the same order"
        )
    return [
        (
            replace(invocation, defines=(*invocation.defines, f"{NAME}={name}")).load_config(),
            store,
        )
        for name, store in zip(brokers, stores, strict=True)
    ]


def _by_files(invocation: Invocation, stores: Sequence[Path]) -> list[tuple[Config, Path]]:
    directories = [one for one in stores if not is_regular_file(one)]
    if directories:
        raise ConfigError(
            f"the brokers of several stores are to be named: give --broker {_hint(directories)} in "
            "the order of the stores, or the brokers' configuration files in place of directories"
        )
    if invocation.conf is not None:
        raise ConfigError("--conf is one more configuration file than stores: leave it out")
    configs = [replace(invocation, conf=one).load_config() for one in stores]
    return [(one, configured_store(one)) for one in configs]


def _hint(directories: Sequence[Path]) -> str:
    """The names of the stores as options, where each has one name."""
    names = [names_of(one)[0].brokers for one in directories]
    return " --broker ".join(one[0] if len(one) == 1 else "NAME" for one in names)


class StoreRun(Collector):
    """Tiering of one of several stores: its follower, metrics, failure and outcome."""

    def __init__(self, config: Config, store_dir: Path, *, clock: Clock, take_over: bool) -> None:
        self.config = config
        self.outcome: RunOutcome | None = None
        self.status = 0
        """Exit status of a command for this store alone."""
        self._store_dir = store_dir
        self._clock = clock
        self._take_over = take_over
        self._failure = ""
        """Why it is not tiered now, in one line."""
        self._follower: Follower | None = None
        self._server: ServerBeside | None = None
        self._counted = CollectorRegistry()
        self._loop: LoopCalls | None = None
        self._interruptible: asyncio.Task[None] | None = None
        """The task of `follow` while nothing waits to be committed."""

    def __str__(self) -> str:
        return f"{self.config.broker} of cluster {self.config.cluster}"

    def drain(self) -> None:
        """Tier what the store has now. A failure is logged.

        Raises:
            Signalled: a signal ended it.
        """
        BROKER.set(self.config.broker)
        try:
            self.outcome = asyncio.run(tier_once(self._opened(CollectorRegistry())))
            self.status = self.outcome.status
        except Exception as error:  # noqa: BLE001 - the other stores are tiered
            self._fail(error, follow=False)
        finally:
            BROKER.set("")

    async def follow(self, stop: asyncio.Event) -> None:
        """Follow until `stop` or a lasting failure. Other failures are tried again.

        A failure is logged, and never raised.
        """
        BROKER.set(self.config.broker)
        self._loop = LoopCalls(asyncio.get_running_loop())
        while not stop.is_set():
            self._interruptible = asyncio.current_task()
            try:
                await self._follow(stop)
            except Exception as error:  # noqa: BLE001 - the other stores are followed
                self._interruptible = asyncio.current_task()
                self._fail(error, follow=True)
                if self.status in LASTING:
                    return
                await self._clock.sleep(RETRY_S)

    def end_waiting(self) -> None:
        """End the task of `follow` if its tier is not open."""
        if self._interruptible is not None:
            self._interruptible.cancel()

    def unready_reason(self) -> str:
        """Return why messages do not reach the tier, in one line; "" while they do."""
        if self._failure:
            return self._failure
        try:
            return unready_reason(self._sample()) or unready_part([self._server])
        except Closed as error:
            return str(error)

    def collect(self) -> Iterator[Metric]:
        """All families of one scrape."""
        loop = self._loop
        if loop is not None:
            yield from TieringMetrics(partial(loop.call, self._sample), VERSION).collect()
        yield from self._counted.collect()

    async def _follow(self, stop: asyncio.Event) -> None:
        counted = CollectorRegistry()
        self._server = server = ServerBeside.of(self.config, self._clock)
        self._counted, self._follower = counted, self._opened(counted)
        async with self._follower as follower:
            self._failure, self.status, self._interruptible = "", 0, None
            beside = beside_of(server, None, counted)
            self.outcome = await follow_until(stop, follower, self.config, beside, is_live=False)
            self.status = self.outcome.status

    def _opened(self, counted: CollectorRegistry) -> Follower:
        return Follower(
            lambda: self.config,
            self._store_dir,
            take_over=self._take_over,
            serves=False,
            clock=self._clock,
            counted=counted,
        )

    def _sample(self) -> Moment:
        try:
            if self._follower is not None:
                return self._follower.moment()
        except Closed as error:
            raise Opening(error.reason, error.path) from error
        raise Opening(self._failure or "it starts", str(self._store_dir))

    def _fail(self, error: Exception, *, follow: bool) -> None:
        self.status, sentence = explain(error)
        if not isinstance(error, Fenced):  # the last sample names the owner that took it
            self._follower = None
        if sentence != self._failure:
            is_over = self.status in LASTING or not follow
            again = "" if is_over else f"; it is tried again every {RETRY_S:g} s"
            LOGGER.error("not tiered: %s%s", sentence, again)
        self._failure = sentence


def tier_each(runs: Sequence[StoreRun]) -> None:
    """Tier one store after another; see `StoreRun.drain`."""
    for run in runs:
        run.drain()


async def follow_all(runs: Sequence[StoreRun], clock: Clock) -> None:
    """Follow all stores until a signal, or until all have failed for good. One page serves all."""
    stop = asyncio.Event()

    def end() -> None:
        stop.set()
        for run in runs:
            run.end_waiting()

    EndingSignals(end)
    answer_watchdog()
    configs = [run.config for run in runs]
    console = await asyncio.to_thread(console_beside, configs, clock)
    beside = [] if console is None else [console.run]

    def unready() -> str:
        reasons = ((run, run.unready_reason()) for run in runs)
        named = next((f"{run}: {reason}" for run, reason in reasons if reason), "")
        return named or unready_part([console])

    pages = merged([labelled_metrics(run.config, run) for run in runs])
    async with (
        served_pages(configs[0], unready, pages),
        running(beside),
        asyncio.TaskGroup() as group,
    ):
        for run in runs:
            group.create_task(run.follow(stop))
