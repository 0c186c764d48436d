"""Two verdicts that only the tier's metadata can reach."""

from provider.errors import StoreError


class Refused(StoreError):
    """Plan again: the change was decided on a state that is no more, or it makes no sense.

    Nothing of the transaction was applied, and nothing of it will become visible.
    """


class NewerVersion(StoreError):
    """Upgrade this program: what lies here was written by a newer one and is not damaged."""
