"""Everything that is wrong with a tier that is open for reading."""

from collections.abc import AsyncGenerator, Callable

from container.check.finding import Finding
from container.check.tier import check_tier
from container.tier_reader import TierReader
from provider.clock import Clock

BEHIND_S = 2.0
"""Seconds that `check` waits before it calls what lies behind the published ends unpublished."""


async def findings_of(
    reader: TierReader,
    is_java: bool,  # noqa: FBT001 - internal
    clock: Clock,
    progress: Callable[[int], None],
    bodies: bool,  # noqa: FBT001 - as above
    *,
    contents: bool = True,
) -> AsyncGenerator[Finding]:
    """What `ReadableTier.check` iterates over; arguments and errors as there.

    `contents` False: what only the bytes of messages and index files tell is left out.
    """
    damage = reader.damage
    if damage is not None:
        detail = f"{damage.reason}; what is published behind it cannot be checked"
        yield Finding("journal", damage.path, damage.position, detail)
    for queue, error in reader.queue_damage.items():
        detail = f"{error.reason} ({error.path}), so not all of the queue can be served"
        yield Finding("java-queue", str(queue), 0, detail)
    async for finding in check_tier(
        reader,
        journal=not is_java,
        bodies=bodies,
        contents=contents,
        progress=progress,
        clock=None if is_java else clock,
        behind_s=BEHIND_S,
    ):
        yield finding
