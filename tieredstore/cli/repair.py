"""`tieredstore repair`: lifts the stop of a queue whose broker lost or rewrote its tail."""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from container.metadata.records import Queue
from container.names.queue_id import QueueId
from container.tier import Tier
from dispatcher.divergence import find_common_end
from dispatcher.hot_log import HotQueue, HotQueueState
from provider.clock import SystemClock
from provider.errors import NotFound, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.cli.invocation import GIVEN_PATH, Invocation, json_option, pass_invocation
from tieredstore.cli.output import Row, count_text, write_json
from tieredstore.cli.reading import QUEUE, TOPIC
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.following.broker_hot_log import RocketMqHotLog
from tieredstore.lifetime import running
from tieredstore.opening import existing_tier
from tieredstore.owning import open_hot_log, open_owner

REASON = "cut to the hot log by `tieredstore repair`"


@dataclass(frozen=True, slots=True)
class Cut:
    """What a repair unpublishes."""

    queue: QueueId
    end: QueueOffset
    """First offset that is unpublished."""
    next_offset: QueueOffset
    """The commit offset before the repair."""
    is_whole: bool
    """True if no message of the queue stays."""

    @property
    def messages(self) -> int:
        """Number of messages that are unpublished."""
        return self.next_offset - self.end


@click.command("repair")
@click.argument("topic", type=TOPIC)
@click.argument("queue", type=QUEUE)
@click.option(
    "--cut-to-hot",
    is_flag=True,
    required=True,
    help="Unpublish the newest messages, down to the last one that broker and tier share.",
)
@click.option(
    "--store",
    type=GIVEN_PATH,
    metavar="DIR",
    help="The broker's store directory. Default: storePathRootDir.",
)
@click.option(
    "--leave-nothing", is_flag=True, help="Allow that no message of QUEUE stays in the tier."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@pass_invocation
def command(
    invocation: Invocation,
    *,
    topic: str,
    queue: int,
    cut_to_hot: bool,
    store: Path | None,
    leave_nothing: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Lift the stop of a QUEUE after its broker lost or rewrote the newest messages.

    Stop `tier --follow` of this broker first. Messages that are unpublished can no longer be read;
    their bytes stay for tieredStoreCutGraceTime hours. Save them before with `read --json`.
    """
    del cut_to_hot  # required, so that a later repair of another kind changes no command
    config = existing_tier(invocation.load_config())
    store = config.store_dir if store is None else store
    wanted = QueueId(topic, queue)
    cut = asyncio.run(_work(config, store, wanted, agreed=None))
    if cut is None:
        if not as_json:
            click.echo(f"{wanted}: the tier and the hot log agree, nothing is to be cut")
        return
    if cut.is_whole and not leave_nothing:
        raise ConfigError(
            f"{wanted}: the hot log has none of its messages, so nothing of it would stay in the "
            f"tier, offsets {cut.end} to {cut.next_offset - 1}: let the broker's log be mended or "
            f"found, or say --leave-nothing as well"
        )
    if not yes:
        _ask(cut)
    asyncio.run(_work(config, store, wanted, agreed=cut))
    if as_json:
        write_json([_row(cut)])
    else:
        click.echo(f"{wanted}: cut, tiering continues at offset {cut.end}")


def _ask(cut: Cut) -> None:
    click.echo(
        f"{cut.queue}: {count_text(cut.messages)} messages, offsets {cut.end} to "
        f"{cut.next_offset - 1}, would be unpublished",
        err=True,
    )
    if not sys.stdin.isatty():
        raise ConfigError("standard input is no terminal to confirm on: say --yes")
    click.confirm("Unpublish them?", abort=True, err=True)


async def _work(config: Config, store: Path, queue: QueueId, *, agreed: Cut | None) -> Cut | None:
    """Find what is to be cut, and cut it if it is what was agreed to."""
    clock = SystemClock()
    async with (
        open_hot_log(config, store, clock=clock) as hot,
        open_owner(config, clock=clock) as tier,
        running([tier.run]),
    ):
        try:
            cut = await _find(hot, tier, queue)
            if cut is not None and agreed is not None:
                if cut != agreed:
                    raise ConfigError(f"{queue} changed meanwhile: stop what tiers it, try again")
                await tier.cut_queue(queue, cut.end, REASON)
        finally:
            await tier.close()
    return cut


async def _find(hot: RocketMqHotLog, tier: Tier, queue: QueueId) -> Cut | None:
    await hot.poll()
    published = tier.queue(queue)
    if published is None:
        raise NotFound("the tier has no such queue", str(queue))
    refusal = _refusal(queue, hot.queue(queue))
    if refusal is not None:
        raise refusal
    end = await find_common_end(hot, tier, queue)
    return None if end is None else _cut(published, end)


def _refusal(queue: QueueId, known: HotQueue | None) -> StoreError | None:
    """Why what the hot log has of a queue is no reason to cut it; None if it may be. Pure.

    A queue that the hot log does not have stops nothing, so nothing of it is to be repaired.
    """
    why = "so nothing tells where to cut"
    if known is None:
        return NotFound(f"the hot log has no such queue, {why}", str(queue))
    match known.state:
        case HotQueueState.READY:
            return None
        case HotQueueState.UNREADABLE:
            reason = f"the hot log cannot be read, {why}: {known.detail}"
            return Unavailable(reason, str(queue))
        case HotQueueState.DAMAGED:
            reason = f"the hot log is damaged, {why}; mend it first: {known.detail}"
            return NotFound(reason, str(queue))
        case HotQueueState.REFUSED:
            return NotFound(f"it is not tiered: {known.detail}; {why}", str(queue))


def _cut(published: Queue, end: QueueOffset) -> Cut:
    return Cut(published.id, end, published.next_offset, is_whole=end <= published.min_offset)


def _row(cut: Cut) -> Row:
    return {
        "topic": cut.queue.topic,
        "queue_id": cut.queue.queue_id,
        "cut_to": cut.end,
        "next_offset": cut.next_offset,
        "messages": cut.messages,
    }
