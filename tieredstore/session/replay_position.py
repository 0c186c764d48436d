"""Replay position of a followed CommitLog, kept in the tier."""

from contextlib import suppress
from dataclasses import replace

from container.names.tier_objects import FOLLOWED_PREFIX, FollowedName
from container.tier import Tier
from provider.clock import Clock
from provider.errors import StoreError
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.log_reader.log_scan import Remembered


class FollowedMemory:
    """Replay position of an owner in the log that it follows.

    A storage error costs a restart only the time to read the log again, so none is raised.
    """

    def __init__(self, hot: RocketMqHotLog, tier: Tier, *, kept_every_s: float) -> None:
        """Keep the position every `kept_every_s` seconds.

        After a crash the next start reads again at most the log of those seconds.
        """
        self._kept_every_s = kept_every_s
        self._hot = hot
        self._tier = tier
        self._kept: FollowedName | None = None

    def __repr__(self) -> str:
        return f"<FollowedMemory: {self._kept}>"

    async def recall(self) -> bool:
        """Start the hot log at the replay position of the previous owner, before its first poll.

        One listing, and three requests if there is a position. Positions of earlier owners do not
        count: the previous owner may have truncated the tier, or followed without one.

        Returns:
            Whether there is a position. The first poll verifies it.
        """
        if not self._hot.is_of_log_alone:
            return False
        with suppress(StoreError):
            listed = await self._tier.store.list(FOLLOWED_PREFIX)
            names = [name for one in listed if (name := FollowedName.parse(one.name)) is not None]
            fitting = [name for name in names if self._fits(name)]
            if fitting:
                newest = max(fitting)
                said = Remembered.decode(bytes(await self._tier.store.read(str(newest))))
                if said is not None and self._is_believed(said, newest):
                    await self._hot.resume(said)
                    await self._keep(said)  # else two starts in a row would lose it
            await self._forget([name for name in names if name != self._kept])
        return self._kept is not None

    async def keep(self) -> None:
        """Write down how far the log is tiered now, if that is further than before."""
        if not self._hot.is_of_log_alone:
            return
        with suppress(StoreError):
            said = await self._hot.remembered()
            before = self._kept
            if said is not None and (before is None or said.position > before.position):
                await self._keep(said)
                await self._forget([] if before is None else [before])

    async def run(self, clock: Clock) -> None:
        """`keep` again and again, until cancelled."""
        while self._hot.is_of_log_alone:
            await clock.sleep(self._kept_every_s)
            await self.keep()

    def _fits(self, name: FollowedName) -> bool:
        journal = self._tier.journal
        # a journal that was restored from a copy may end before the entry
        return name.epoch == journal.epoch - 1 and name.sequence < journal.fence

    def _is_believed(self, said: Remembered, name: FollowedName) -> bool:
        """Whether it is of the owner that our fence replaced.

        In a journal that was restored from a copy, another owner may have had the same epoch, and
        entries of the same numbers.
        """
        earlier = self._tier.journal.loaded.earlier
        return said.owner == earlier.owner and said.position == name.position

    async def _keep(self, said: Remembered) -> None:
        # read after what was released, whose entries are therefore below this number
        sequence = self._tier.state.sequence
        name = FollowedName(self._tier.journal.epoch, sequence, said.position)
        kept = replace(said, owner=self._tier.state.broker.owner)
        await self._tier.store.create(str(name), [kept.encode()])
        self._kept = name

    async def _forget(self, names: list[FollowedName]) -> None:
        await self._tier.store.delete([str(name) for name in names])
