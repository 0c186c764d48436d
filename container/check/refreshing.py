"""Newer metadata of a tier that lives while it is checked."""

from container.errors import NewerVersion
from container.tier_view import TierView
from provider.errors import Corrupt, NotFound

LOOKS_MAX = 4
"""Looks at something that changes under each of them; the last one counts."""


async def take_newer(tier: TierView) -> None:
    """Take newer metadata, if there is some that can be read."""
    try:
        await tier.refresh(doubted=True)
    except (Corrupt, NewerVersion, NotFound):
        return  # what was open stays; the journal's own check names the damage
