"""A store that asks again when the storage was unavailable, where asking again is harmless."""

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import ParamSpec, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from provider.clock import Clock
from provider.errors import Unavailable
from provider.object_store import Append, AppendingStore, Buffer, ObjectEntry
from provider.options import RetryOptions
from provider.ranges import ByteRange

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class RetryingStore:
    """Wrap a store; calls that may be repeated are, with exponential back-off and full jitter.

    `create` is tried once: only the caller, which knows its nonce, can tell its own object from
    another's. `register` is tried once: its caller asks again for a newer answer. When tries or
    time run out, the last `Unavailable` is raised. Cancelling a call also ends its waiting.
    """

    def __init__(
        self,
        inner: AppendingStore,
        *,
        clock: Clock,
        rng: Random,
        options: RetryOptions | None = None,
    ) -> None:
        self._inner = inner
        self._clock = clock
        self._rng = rng
        self._options = options or RetryOptions()
        self.retries = 0
        """Calls that were made again so far, over all verbs."""

    def __repr__(self) -> str:
        return f"<RetryingStore {self.retries} retries: {self._inner!r}>"

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store a new object; `ObjectStore.create`. Once."""
        await self._inner.create(name, buffers)

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`."""
        return await self._retry(self._inner.read, name, wanted)

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`. All of them again if one failed."""
        return await self._retry(self._inner.read_many, wanted)

    async def size(self, name: str) -> int:
        """The object's length in bytes; `ObjectStore.size`."""
        return await self._retry(self._inner.size, name)

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """Objects by name; `ObjectStore.list`."""
        return await self._retry(self._inner.list, prefix, after=after)

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects; `ObjectStore.delete`."""
        await self._retry(self._inner.delete, names)

    async def append(self, appends: Sequence[Append]) -> None:
        """Write every piece at its position; `AppendingStore.append`."""
        await self._retry(self._inner.append, appends)

    async def register(self, name: str) -> bool:
        """Register this store as present; `AppendingStore.register`. Once."""
        return await self._inner.register(name)

    async def close(self) -> None:
        """Close the store behind."""
        await self._inner.close()

    async def _retry(
        self,
        call: Callable[_Given, Awaitable[_Result]],
        *args: _Given.args,
        **kwargs: _Given.kwargs,
    ) -> _Result:
        options, started_s = self._options, self._clock.monotonic_s()

        def wait_s(state: RetryCallState) -> float:
            bound_s = options.first_wait_s_max * 2.0 ** min(state.attempt_number - 1, 60)
            return self._rng.uniform(0.0, min(options.wait_s_max, bound_s))

        def is_over(state: RetryCallState) -> bool:
            elapsed_s = self._clock.monotonic_s() - started_s
            over = elapsed_s + state.upcoming_sleep > options.deadline_s
            return over or state.attempt_number >= options.tries_max

        def count(_state: RetryCallState) -> None:
            self.retries += 1

        return await AsyncRetrying(
            sleep=self._clock.sleep,
            wait=wait_s,
            stop=is_over,
            retry=retry_if_exception_type(Unavailable),
            before_sleep=count,
            reraise=True,
        )(call, *args, **kwargs)
