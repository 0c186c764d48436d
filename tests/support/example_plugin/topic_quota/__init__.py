"""A user's plug-in: at most so many messages of one topic in a second.

It is installed as any distribution is. Its entry point in the group `tieredstore.plugins` gives it
the name that a configuration uses: `messageStorePlugIn=topic-quota,tieredstore.TieredMessageStore`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from tieredstore import (
    Appended,
    ForwardingMessageStore,
    MessageStore,
    NewMessage,
    PluginContext,
)


class TopicQuota(ForwardingMessageStore):
    """Refuses what is beyond `quota.messages` a second and topic."""

    def __init__(self, context: PluginContext, inner: MessageStore) -> None:
        super().__init__(inner)
        self._most = int(context.settings.get("quota.messages", 1000))
        self._clock = context.clock
        self._since_s = 0.0
        self._counts: Counter[str] = Counter()
        self._refused = 0

    async def start(self) -> None:
        self._since_s = self._clock.monotonic_s()

    async def put_message(self, message: NewMessage) -> Appended:
        return (await self.put_messages([message]))[0]

    async def put_messages(
        self, messages: Sequence[NewMessage], *, together: bool = False
    ) -> list[Appended]:
        now_s = self._clock.monotonic_s()
        if now_s - self._since_s >= 1:
            self._since_s, self._counts = now_s, Counter()
        counts = self._counts + Counter(message.topic for message in messages)
        for topic, count in counts.items():
            if count > self._most:
                self._refused += 1
                raise ValueError(f"more than {self._most} messages of {topic} in a second")
        self._counts = counts
        return await super().put_messages(messages, together=together)

    def statistics(self) -> Mapping[str, float]:
        return {**super().statistics(), "quota_refused": self._refused}
