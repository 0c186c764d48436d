"""`tieredstore tier`: what a store directory holds, into the tier, once or for good."""

import asyncio
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click
from prometheus_client import CollectorRegistry

from container.tier_records import Queue, QueueId
from dispatcher.dispatcher import TieredDispatcher
from dispatcher.queue_progress import QueueState
from dispatcher.statistics import DispatchStatistics, Progress
from provider.clock import SystemClock
from tieredstore.cli.failures import FINDINGS
from tieredstore.cli.invocation import Invocation, json_option, pass_invocation
from tieredstore.cli.output import Row, count_text, size_text, write_json, write_table
from tieredstore.cli.printable import printable
from tieredstore.cli.progress import Show, progress_bar
from tieredstore.config import Config
from tieredstore.config_file import ConfigError
from tieredstore.lifetime import running
from tieredstore.metrics import TieringMetrics, served_metrics
from tieredstore.opening import directory_of, open_hot_log, open_owner
from tieredstore.summary import TopicSummary, summarize

REPORT_S = 1.0


@click.command("tier")
@click.argument("store_dir", type=click.Path(path_type=Path))
@click.option("--follow", is_flag=True, help="Keep going until SIGINT or SIGTERM.")
@json_option
@pass_invocation
def command(invocation: Invocation, store_dir: Path, *, follow: bool, as_json: bool) -> int:
    """Tier what a broker's STORE_DIR (its storePathRootDir) holds; never writes there.

    The broker may run. Ends with 1 if a queue was stopped, is damaged or could not be looked for.
    """
    config = invocation.load_config()
    if config.level == "DISABLE":
        origin = config.settings["tieredStorageLevel"].origin
        raise ConfigError(f"tieredStorageLevel=DISABLE ({origin}) switches tiering off")
    topics, troubles = asyncio.run(_run(config, store_dir, follow=follow))
    if as_json:
        write_json(map(_row, topics))
    else:
        _print(topics)
    return FINDINGS if troubles or any(topic.is_broken for topic in topics) else 0


async def _run(
    config: Config, store_dir: Path, *, follow: bool
) -> tuple[list[TopicSummary], list[str]]:
    """Returns what became of each topic, and what of the store could not be looked at."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None, "a command is a task"
    if follow:
        loop.add_signal_handler(signal.SIGINT, stop.set)
    loop.add_signal_handler(signal.SIGTERM, stop.set if follow else task.cancel)
    clock = SystemClock()
    registry = CollectorRegistry()
    async with (
        open_hot_log(config, store_dir, clock=clock) as hot,
        open_owner(config, directory_of(config), clock=clock, registry=registry) as tier,
        served_metrics(config.metrics_port if follow else 0, registry),
    ):
        before: Mapping[QueueId, Queue] = dict(tier.state.queues)
        dispatcher = TieredDispatcher(hot, tier, options=config.dispatch, clock=clock)
        registry.register(
            TieringMetrics(dispatcher.statistics, lambda: hot.statistics, tier.journal.statistics)
        )

        troubles, findings = Told(), Told()

        async def report() -> None:
            while True:
                statistics = dispatcher.statistics()
                troubles.tell([*_troubles(statistics), *hot.statistics.troubles])
                findings.tell(hot.statistics.findings)
                await clock.sleep(REPORT_S)

        async with running([tier.run]):
            try:
                if follow:
                    # A stop that came while we opened: `close` alone commits what is there.
                    workers = () if stop.is_set() else (dispatcher.run, report)
                    async with running(workers):
                        await stop.wait()
                        await dispatcher.close()
                    statistics = dispatcher.statistics()
                else:
                    with progress_bar("tiering") as show:
                        statistics = await dispatcher.drain(on_progress=_shown(show))
                    troubles.tell(hot.statistics.troubles)
            finally:
                findings.tell(hot.statistics.findings)
                await tier.close()
        topics = summarize(before, tier.state.queues, statistics.queues)
        return topics, hot.statistics.troubles


class Told:
    """Sentences that standard error has; each is said once while it holds, and again later."""

    def __init__(self) -> None:
        self._told: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"<Told: {len(self._told)} sentences>"

    def tell(self, sentences: Iterable[str]) -> None:
        """Say those that are new."""
        now = frozenset(sentences)
        for sentence in sorted(now - self._told):
            click.echo(f"tieredstore: {printable(sentence)}", err=True)
        self._told = now


def _troubles(statistics: DispatchStatistics) -> Iterator[str]:
    if statistics.outage:
        yield f"nothing reaches the tier at present: {statistics.last_error}"
    if statistics.hot_error:
        yield f"the store cannot be read at present: {statistics.hot_error}"
    for queue in statistics.over:
        yield _over(queue.queue, queue.state.value, queue.reason)


def _over(queue: QueueId, state: str, reason: str) -> str:
    """What became of a queue; a refusal is one of its whole topic."""
    name = queue.topic if state == QueueState.REFUSED.value else queue
    return printable(f"{name} is {state}: {reason}")


def _shown(show: Show | None) -> Callable[[Progress], None] | None:
    if show is None:
        return None

    def tell(progress: Progress) -> None:
        counts = f"{count_text(progress.messages_done)} of {count_text(progress.messages_total)}"
        note = f"{counts} messages, {size_text(progress.bytes_done)}"
        show(progress.messages_done, progress.messages_total, note)

    return tell


def _row(topic: TopicSummary) -> Row:
    return {
        "topic": topic.topic,
        "queues": topic.queues,
        "messages": topic.messages,
        "messages_new": topic.messages_new,
        "commit_log_bytes": topic.bytes,
        "commit_log_bytes_new": topic.bytes_new,
        "behind": topic.behind,
        "lost": topic.lost,
        "over": [
            {"queue_id": queue, "state": state, "reason": reason}
            for queue, state, reason in topic.over
        ],
    }


def _print(topics: Sequence[TopicSummary]) -> None:
    columns = ("topic", "queues", "messages", "new", "size", "behind", "lost")
    rows = [
        (
            topic.topic,
            str(topic.queues),
            count_text(topic.messages),
            count_text(topic.messages_new),
            size_text(topic.bytes),
            count_text(topic.behind) if topic.behind else "",
            count_text(topic.lost) if topic.lost else "",
        )
        for topic in topics
    ]
    write_table(columns, rows, numbers=frozenset(columns[1:]))
    for topic in topics:
        sentences = (_over(QueueId(topic.topic, queue), *why) for queue, *why in topic.over)
        for sentence in dict.fromkeys(sentences):
            click.echo(sentence)
