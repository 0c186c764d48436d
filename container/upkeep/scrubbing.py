"""Scrub step: an owner verifies a part of its tier in each run, if configured.

Work, order and stored mark are those of `tieredstore scrub`: each continues where the other
stopped. Findings are counted and reported, one sentence each. Nothing is changed or deleted, which
requires an explicit command.
"""

from collections.abc import Mapping
from contextlib import suppress

from container.check.finding import Finding
from container.check.scrub import Scrubber, read_mark, write_mark
from container.steps.step import OwnedTier, Step
from container.tier_view import TierView
from provider.disk_cache.use import cache_use
from provider.errors import AlreadyExists, Corrupt, StoreError

SETTLE_S = 2.0
"""Seconds that a commit under way has for its publication before its files are reported."""


class ScrubStep(Step):
    """Verifies the next part of the tier every `scrub_interval_s`, and raises its findings.

    Cost of a run: `scrub_operations_max` requests, the rest of the last unit of work, and five
    requests for the mark. A unit reads up to 16 MiB. Memory: as `Scrubber`.
    """

    name = "scrub"

    def __init__(self, tier: OwnedTier) -> None:
        super().__init__(tier)
        self.interval_s = tier.options.scrub_interval_s
        self._view = TierView(tier.store, tier.journal)
        self._operations = self._bytes = self._findings = self._rounds = 0

    async def step(self) -> None:
        """Verify the next part.

        Raises:
            Corrupt: there are findings. It names the first, and their number.
            Unavailable: the storage does not answer. The next run continues there.
        """
        with cache_use(past=True):
            found = await self._scrub()
        if found:
            first, count = found[0], len(found)
            others = f", and {count - 1} more" if count > 1 else ""
            reason = f"{first.finding}: {first.detail}{others}; `tieredstore check` tells all"
            raise Corrupt(reason, first.path, first.position)

    async def finish(self) -> None:
        """Do nothing: a clean end does not wait for reads of the tier."""

    async def _scrub(self) -> list[Finding]:
        """Run once. The mark is written even if the storage ends the run."""
        store, options = self.tier.store, self.tier.options
        scrubber = Scrubber(
            self._view,
            await read_mark(store),
            operations_max=options.scrub_operations_max,
            clock=self.tier.clock,
            settle_s=SETTLE_S,
        )
        try:
            found = [finding async for finding in scrubber.run()]
        except StoreError:
            with suppress(StoreError):  # the first one is raised
                await write_mark(store, scrubber.mark)
            raise
        finally:
            self._operations += scrubber.operations
            self._bytes += scrubber.bytes_read
        self._findings += len(found)
        self._rounds += scrubber.is_round_over
        with suppress(AlreadyExists):  # another process scrubs concurrently; either mark is valid
            await write_mark(store, scrubber.mark)
        return found

    @property
    def figures(self) -> Mapping[str, int]:
        """Requests, verified bytes, findings, and completed rounds."""
        return {
            "scrub_operations": self._operations,
            "scrubbed_bytes": self._bytes,
            "scrub_findings": self._findings,
            "scrub_rounds": self._rounds,
        }
