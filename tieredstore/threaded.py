"""Synchronous faces: an asynchronous context kept open in a thread, and its calls."""

import os
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from functools import partial, wraps
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from provider.errors import Closed

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

ItemT = TypeVar("ItemT")
P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def _end(stack: ExitStack) -> None:
    """End the thread of an object that was dropped open, or is open at exit."""
    with suppress(Exception):  # there is no caller left; `__del__` warns
        stack.close()


class Threaded:
    """Keeps one asynchronous context manager open in a thread with an event loop.

    The thread does not exist in a forked child, where a call would wait for ever: calls there raise
    `Closed`. Nothing is closed there, because the parent uses the same files.
    """

    def __init__(self, opened: AbstractAsyncContextManager[object]) -> None:
        from anyio.from_thread import start_blocking_portal  # noqa: PLC0415 - so that `import` is fast

        self._opened = opened
        self._stack: ExitStack | None = None
        with ExitStack() as stack:
            self._portal: BlockingPortal = stack.enter_context(
                start_blocking_portal(name="tieredstore")
            )
            stack.enter_context(self._portal.wrap_async_context_manager(opened))
            self._stack = stack.pop_all()
        # Later than at exit, its end would wait for a thread that the interpreter has stopped.
        self._finalizer = weakref.finalize(self, _end, self._stack)
        self._process = os.getpid()
        _OPEN.add(self)

    def __enter__(self) -> Self:
        """It is open already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel running calls, close, and end the thread."""
        stack, self._stack = self._stack, None
        if stack is not None:
            self._finalizer.detach()
            stack.__exit__(kind, error, traceback)

    def __del__(self) -> None:
        if getattr(self, "_stack", None) is not None:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._opened!r}>"

    @property
    def _running(self) -> "BlockingPortal":
        """The way into the loop's thread; raises `Closed` once that has ended."""
        if self._stack is None:
            reason = "it was closed"
            if self._process != os.getpid():
                reason = f"process {self._process} opened it before a fork: open it in each process"
            raise Closed(reason, repr(self))
        return self._portal

    def leave_to_parent(self) -> None:
        """Count as closed, and close nothing. For a forked child."""
        self._finalizer.detach()
        with suppress(StopIteration):  # `stop` awaits nothing; the portal then waits for no thread
            self._portal.stop().send(None)
        self._stack = None

    def close(self) -> None:
        """Cancel running calls, close, and end the thread. Idempotent."""
        self.__exit__(None, None, None)

    def call_method(self, name: str, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - see `blocking`
        """Call a method of the opened object in the thread, and wait for its result."""
        return self._running.call(partial(getattr(self._opened, name), *args, **kwargs))

    def run(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Call a function in the thread, and wait for its result. Internal."""
        return self._running.call(work)

    def each_of(self, chunks: Callable[[], AsyncIterator[Iterable[ItemT]]]) -> Iterator[ItemT]:
        """Yield the items of chunks, which are fetched on demand. Internal."""
        return chain.from_iterable(self._each(self._running.call(chunks)))

    def _each(self, items: AsyncIterator[ItemT]) -> Iterator[ItemT]:
        """Yield the items of an asynchronous iterator, each on demand."""

        async def following() -> ItemT | None:
            return await anext(items, None)

        while (item := self._running.call(following)) is not None:
            yield item


def _after_fork() -> None:
    for one in _OPEN:
        one.leave_to_parent()


_OPEN: weakref.WeakSet[Threaded] = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork)


def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[ResultT] | ResultT],
) -> Callable[Concatenate[Threaded, P], ResultT]:
    """Return a method of the synchronous face: the one of that name, called in the thread."""

    @wraps(method)
    def call(self: Threaded, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return self.call_method(method.__name__, *args, **kwargs)

    return call
