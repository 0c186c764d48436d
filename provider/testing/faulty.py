"""Store with injected faults of real storage, reproducible by seed.

Fault model, which all code above must survive. Each fault is chosen per verb and name prefix, and
strikes with a probability or at the n-th matching call:

- `refused`: the call fails with `Unavailable`, nothing happened.
- `lost_reply`: the call takes effect, then fails with `Unavailable`.
- `late`: the call fails with `Unavailable`, and takes effect when the test calls `land_late()`.
- `delayed`: the call takes `delay_s` of the clock longer, then continues.
- `slow_reply`: the call takes effect, and its reply takes `delay_s` of the clock longer.
- `stalled`: the call waits for the event `released`, then continues.
- `short`: some bytes of an `append` land, from its beginning, then it fails with `Unavailable`.
- `bit_flip`: one bit of each buffer that a read returns is wrong, without an error.
- `crash_before`, `crash_torn`, `crash_after`: the process dies before, in the middle of (`append`
  only) or after the call. It and every later call raises `Crashed`, and no later call lands. The
  test releases the locks of the dead process by `close` (or `MemoryStore.kill`).
- `full`: while set, `create` and `append` fail with `Unavailable`; nothing happens.
- `read_only`: while set, `create`, `append` and `delete` fail with `Denied`; nothing happens.

Every call yields to the loop once before its effect and once after, so that a cancellation can
strike at both. Out of scope, because no provider may do it: a torn or replaced `create`, a short
read, a lost acknowledged write, a listing without an acknowledged object.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from provider.clock import Clock, SystemClock
from provider.errors import Denied, StoreError, Unavailable
from provider.object_store import Append, AppendingStore, Buffer, ForwardingStore, Result
from provider.ranges import ByteRange

Kind = Literal[
    "refused",
    "lost_reply",
    "late",
    "delayed",
    "slow_reply",
    "stalled",
    "short",
    "bit_flip",
    "crash_before",
    "crash_torn",
    "crash_after",
]
_WRITES = frozenset({"create", "append", "delete"})
_GROWS = frozenset({"create", "append"})
_READS = frozenset({"read", "read_many"})


class Crashed(Exception):
    """Death of the process. Not a `StoreError`: only a new process may settle its outcome."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault with its kind and the calls that it strikes."""

    kind: Kind
    verb: str = ""
    """Verb to strike; "": every verb to which the kind applies."""
    prefix: str = ""
    """Prefix of a name that a struck call must use."""
    probability: float = 1.0
    """Probability of striking a matching call."""
    calls: Sequence[int] = ()
    """Matching calls to strike, counted from 1, such as `range(7, 10**9)` for all from the 7th on;
    empty: any."""
    delay_s: float = 0.0
    """Additional time of `delayed` and `slow_reply`, in seconds of the clock."""

    def applies_to(self, verb: str, names: Sequence[str]) -> bool:
        """Whether this fault can strike a call."""
        if self.kind in {"short", "crash_torn"} and verb != "append":
            return False
        if self.kind == "bit_flip" and verb not in _READS:
            return False
        if self.kind == "late" and verb not in _WRITES:
            return False
        return self.verb in {"", verb} and any(name.startswith(self.prefix) for name in names)


class FaultyObjectStore(ForwardingStore):
    """Wrapper that injects faults. `faults`, `full` and `read_only` may change during a test.

    `calls` counts calls by verb, struck ones included; `items` their objects, ranges or pieces;
    `bytes` the bytes to write or read. `struck` counts faults by kind.
    """

    def __init__(
        self,
        inner: AppendingStore,
        *,
        rng: Random | None = None,
        faults: Sequence[Fault] = (),
        clock: Clock | None = None,
    ) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.items: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.struck: Counter[str] = Counter()
        self.full = False
        self.read_only = False
        self.crashed = False
        self.released = asyncio.Event()
        """Event that releases stalled calls."""
        self._rng = rng or Random(0)
        self._clock = clock or SystemClock()
        self._faults = tuple(faults)
        self._matched: Counter[int] = Counter()
        self._late: list[tuple[frozenset[tuple[str, str]], Callable[[], Awaitable[object]]]] = []

    def __repr__(self) -> str:
        state = "crashed" if self.crashed else f"{len(self._faults)} faults"
        return f"<FaultyObjectStore {state}, struck {dict(self.struck)}: {self.inner!r}>"

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Active faults. Assigning them resets the counts of matching calls."""
        return self._faults

    @faults.setter
    def faults(self, faults: Sequence[Fault]) -> None:
        self._faults = tuple(faults)
        self._matched.clear()

    async def land_late(self) -> None:
        """Run the effects of `late` calls now, in the order of the calls. Their errors are lost."""
        landing, self._late = self._late, []
        for _, effect in landing:
            with suppress(StoreError):
                await effect()

    async def _land_before(self, verb: str, names: Collection[str]) -> None:
        """Run the effects of late calls of a verb on these files before the next one (P12)."""
        wanted = {(verb, name) for name in names}
        landing = [one for one in self._late if not one[0].isdisjoint(wanted)]
        self._late = [one for one in self._late if one not in landing]
        for _, effect in landing:
            with suppress(StoreError):
                await effect()

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store a new object; `ObjectStore.create`."""
        await super().create(name, [bytes(buffer) for buffer in buffers])

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`."""
        found = await self._call(
            "read",
            [name],
            lambda: self.inner.read(name, wanted),
            spoil=lambda data: flipped(data, self._rng),
        )
        self.bytes["read"] += len(found)
        return found

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`."""
        found = await self._call(
            "read_many",
            [name for name, _ in wanted],
            lambda: self.inner.read_many(wanted),
            spoil=lambda data: [flipped(part, self._rng) for part in data],
        )
        self.bytes["read_many"] += sum(map(len, found))
        return found

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; `ObjectStore.delete`."""
        await self._land_before("delete", names)
        await super().delete(names)

    async def append(self, appends: Sequence[Append]) -> None:
        """Write every piece at its position; `AppendingStore.append`."""
        kept = [replace(piece, buffers=tuple(map(bytes, piece.buffers))) for piece in appends]
        size_bytes = sum(len(buffer) for piece in kept for buffer in piece.buffers)
        await self._land_before("append", {piece.name for piece in kept})
        await self._call(
            "append",
            [piece.name for piece in kept],
            lambda: self.inner.append(kept),
            size_bytes,
            part=lambda: self.inner.append(torn(kept, self._rng.randrange(size_bytes + 1))),
        )

    async def close(self) -> None:
        """Close the wrapped store, also after a crash, so that a test can clean up."""
        await super().close()

    def _strikes(self, verb: str, names: Sequence[str]) -> dict[str, Fault]:
        """Return the faults that strike this call, by kind. Each matching fault counts the call."""
        struck: dict[str, Fault] = {}
        for index, fault in enumerate(self._faults):
            if not fault.applies_to(verb, names or [""]):
                continue
            self._matched[index] += 1
            if fault.calls and self._matched[index] not in fault.calls:
                continue
            if fault.probability >= 1 or self._rng.random() < fault.probability:
                struck.setdefault(fault.kind, fault)
        self.struck.update(struck.keys())
        return struck

    async def _call(
        self,
        verb: str,
        names: Sequence[str],
        effect: Callable[[], Awaitable[Result]],
        size_bytes: int = 0,
        *,
        part: Callable[[], Awaitable[None]] | None = None,
        spoil: Callable[[Result], Result] | None = None,
    ) -> Result:
        """Strike a call, or forward it.

        `part` is the effect of a torn call; `spoil` flips bits of a result.
        """
        self.calls[verb] += 1
        self.items[verb] += len(names)
        self.bytes[verb] += size_bytes
        path = names[0] if names else ""
        self._alive(path)
        strikes = self._strikes(verb, names)
        if "stalled" in strikes:
            await self.released.wait()
        if "delayed" in strikes:
            await self._clock.sleep(strikes["delayed"].delay_s)
        await asyncio.sleep(0)
        self._alive(path)
        if "crash_before" in strikes:
            self._die(path)
        self._refuse(verb, path, strikes)
        if "late" in strikes:
            self._late.append((frozenset((verb, name) for name in names), effect))
            raise Unavailable("injected late", path)
        if part is not None and ("short" in strikes or "crash_torn" in strikes):
            await part()
            if "crash_torn" in strikes:
                self._die(path)
            raise Unavailable("injected short", path)
        result = await effect()
        await self._reply(path, strikes)
        if "crash_after" in strikes:
            self._die(path)
        if "lost_reply" in strikes:
            raise Unavailable("injected lost_reply", path)
        if spoil is not None and "bit_flip" in strikes:
            return spoil(result)
        return result

    async def _reply(self, path: str, strikes: dict[str, Fault]) -> None:
        """Delay the reply of a slow call. The process may crash meanwhile."""
        if "slow_reply" in strikes:
            await self._clock.sleep(strikes["slow_reply"].delay_s)
            self._alive(path)
        await asyncio.sleep(0)

    def _alive(self, path: str) -> None:
        if self.crashed:
            raise Crashed(path)

    def _die(self, path: str) -> None:
        self.crashed = True
        self._late.clear()
        raise Crashed(path)

    def _refuse(self, verb: str, path: str, strikes: dict[str, Fault]) -> None:
        if self.read_only and verb in _WRITES:
            raise Denied("injected read_only", path)
        if self.full and verb in _GROWS:
            raise Unavailable("injected full", path)
        if "refused" in strikes:
            raise Unavailable("injected refused", path)


def torn(appends: Sequence[Append], size_bytes: int) -> list[Append]:
    """Return the first `size_bytes` bytes of a round, without empty pieces. Pure."""
    pieces: list[Append] = []
    for piece in appends:
        data = b"".join(piece.buffers)[:size_bytes]
        size_bytes -= len(data)
        if data:
            pieces.append(replace(piece, buffers=(data,)))
    return pieces


def flipped(data: Buffer, rng: Random) -> bytes:
    """Copy data with one random bit flipped. Empty data stay empty."""
    wrong = bytearray(data)
    if wrong:
        wrong[rng.randrange(len(wrong))] ^= 1 << rng.randrange(8)
    return bytes(wrong)
