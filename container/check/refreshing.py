"""Refresh of a tier's metadata during a check."""

from container.errors import NewerVersion
from container.tier_view import TierView
from provider.errors import Corrupt, NotFound

ATTEMPTS_MAX = 4
"""Attempts at an object that changes during each of them. The last one counts."""


async def take_newer(tier: TierView) -> None:
    """Refresh the metadata if readable newer metadata exists."""
    try:
        await tier.refresh(doubted=True)
    except (Corrupt, NewerVersion, NotFound):
        return  # the open metadata stays; the check of the journal reports the damage
