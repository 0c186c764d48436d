"""Removal of the garbage that a scrub found, on an explicit option."""

from collections.abc import Sequence

from container.check.scrub import may_be_deleted
from container.check.tier import may_be_a_commit, published_names
from container.errors import Refused
from container.metadata.operations import AddTombstones
from container.metadata.records import Tombstone
from container.tier import Tier
from provider.clock import Clock
from tieredstore.config.effective import Config
from tieredstore.session.owner import running_owner

REASON = "nothing referred to it, by `tieredstore scrub`"
NAMES_AT_ONCE_MAX = 1_000


async def give_up(
    config: Config, names: Sequence[str], *, grace_s: float, take_over: bool, clock: Clock
) -> list[str]:
    """Own the tier, and publish tombstones for those of `names` that are still garbage.

    Returns the names with a tombstone. Foreign files, and files of queues that the tier does not
    have, stay as they are.

    Raises:
        Owned: a living process owns the tier; nothing was changed.
        Refused: a manifest cannot be read, so its references are unknown.
        Fenced: another process took the tier meanwhile.
    """
    async with running_owner(config, clock=clock, take_over=take_over) as tier:
        return await _tombstoned(tier, names, grace_ms=int(grace_s * 1000), clock=clock)


async def _tombstoned(
    tier: Tier, names: Sequence[str], *, grace_ms: int, clock: Clock
) -> list[str]:
    published, lost = await published_names(tier, tier.state.queues)
    if lost is not None:
        reason = f"what this manifest refers to is not known, so nothing is deleted: {lost.reason}"
        raise Refused(reason, lost.path, lost.position)
    dead = [
        name
        for name in names
        if name not in published
        and may_be_deleted(tier.state, name)
        and not may_be_a_commit(tier.state, name)
    ]
    not_before_ms = clock.now_ms() + grace_ms
    for start in range(0, len(dead), NAMES_AT_ONCE_MAX):
        part = dead[start : start + NAMES_AT_ONCE_MAX]
        tombstones = tuple(Tombstone(name, not_before_ms, REASON) for name in part)
        await tier.journal.publish([AddTombstones(tombstones)])
    return dead
