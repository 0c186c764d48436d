"""Store that retries idempotent calls while the storage is unavailable."""

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

from provider.clock import Clock, backoff_s
from provider.errors import Unavailable
from provider.object_store import ForwardingStore, ObjectStore, ReadNow, Result, read_now_of
from provider.options import RetryOptions

_ONCE: Final = frozenset({"create", "register"})
"""Verbs that only the caller can retry."""


class RetryingStore(ForwardingStore):
    """Wrapper that retries idempotent calls, with exponential backoff and full jitter.

    `create` is tried once: only the caller, which knows its nonce, can distinguish its own object
    from another one. `register` is tried once: its caller calls again for the present state. After
    the last attempt or the deadline, the last `Unavailable` is raised. Cancelling a call also ends
    its pause.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        clock: Clock,
        rng: Random,
        options: RetryOptions | None = None,
    ) -> None:
        super().__init__(inner)
        self._clock = clock
        self._rng = rng
        self._options = options or RetryOptions()
        self.retries = 0
        """Number of retries so far, over all verbs."""

    def __repr__(self) -> str:
        return f"<RetryingStore {self.retries} retries: {self.inner!r}>"

    @property
    def read_now(self) -> ReadNow | None:
        """`ReadNow` of the wrapped store: there is nothing to retry."""
        return read_now_of(self.inner)

    async def _call(
        self,
        verb: str,
        names: Sequence[str],
        effect: Callable[[], Awaitable[Result]],
        size_bytes: int = 0,
    ) -> Result:
        """Call, and retry while the store is unavailable and the verb may be retried."""
        if verb in _ONCE:
            return await super()._call(verb, names, effect, size_bytes)
        options, started_s = self._options, self._clock.monotonic_s()
        attempt = 0
        while True:
            attempt += 1
            try:
                return await super()._call(verb, names, effect, size_bytes)
            except Unavailable:
                bound_s = backoff_s(
                    attempt, s_min=options.first_wait_s_max, s_max=options.wait_s_max
                )
                pause_s = self._rng.uniform(0.0, bound_s)
                elapsed_s = self._clock.monotonic_s() - started_s
                if attempt >= options.tries_max or elapsed_s + pause_s > options.deadline_s:
                    raise
            self.retries += 1
            await self._clock.sleep(pause_s)
