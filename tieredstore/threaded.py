"""Synchronous faces: an asynchronous context kept open in a thread, and its calls."""

import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from provider.errors import Closed

ItemT = TypeVar("ItemT")
P = ParamSpec("P")
ResultT = TypeVar("ResultT")


def _end(stack: ExitStack) -> None:
    """End the thread of an object that was dropped open, or is open at exit."""
    with suppress(Exception):  # there is no caller left; `__del__` warns
        stack.close()


class Threaded:
    """Keeps one asynchronous context manager open in a thread with an event loop."""

    def __init__(self, opened: AbstractAsyncContextManager[object]) -> None:
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
    def _running(self) -> BlockingPortal:
        """The way into the loop's thread; raises `Closed` once that has ended."""
        if self._stack is None:
            raise Closed("it was closed", repr(self))
        return self._portal

    def close(self) -> None:
        """Cancel running calls, close, and end the thread. Idempotent."""
        self.__exit__(None, None, None)

    def call_method(self, name: str, *args: object, **kwargs: object) -> Any:  # noqa: ANN401 - see `blocking`
        """Call a method of the opened object in the thread, and wait for its result."""
        return self._running.call(partial(getattr(self._opened, name), *args, **kwargs))

    def _each(self, items: AsyncIterator[ItemT]) -> Iterator[ItemT]:
        """Yield the items of an asynchronous iterator, each on demand."""

        async def following() -> ItemT | None:
            return await anext(items, None)

        while (item := self._running.call(following)) is not None:
            yield item


def blocking(
    method: Callable[Concatenate[Any, P], Awaitable[ResultT] | ResultT],
) -> Callable[Concatenate[Threaded, P], ResultT]:
    """Return a method of the synchronous face: the one of that name, called in the thread."""

    @wraps(method)
    def call(self: Threaded, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return self.call_method(method.__name__, *args, **kwargs)

    return call
