"""A forwarding store hands on every call of the protocol, and opens and closes in order."""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import pytest

from fetcher.result import FetchStatus
from provider.clock import SystemClock
from tests.support.tiered_world import TieredWorld
from tieredstore.hot.encoding import NewMessage
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.plugins import ForwardingMessageStore
from tieredstore.store.protocol import GetMessageResult, MessageStore
from tieredstore.store.tiered import TieredMessageStore

CALLS = [
    name
    for name, _ in inspect.getmembers(MessageStore, inspect.isfunction)
    if not name.startswith("_")
]


class RecordingStore:
    """Takes every call, and returns an object that is told apart from any other."""

    def __init__(self, said: list[str] | None = None, **failing: BaseException) -> None:
        self.said = [] if said is None else said
        self.calls: list[tuple[str, tuple[object, ...], dict[str, object]]] = []
        self.returned = object()
        self._failing = failing

    async def __aenter__(self) -> Self:
        self._say("opened")
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._say("closed" if error is None else f"closed by {type(error).__name__}")

    def _say(self, word: str) -> None:
        self.said.append(f"inner {word}")
        if word in self._failing:
            raise self._failing[word]

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*given: object, **named: object) -> object:
            self.calls.append((name, given, named))
            method = getattr(MessageStore, name)
            if inspect.iscoroutinefunction(method):
                return self._later()
            return self.returned

        return call

    async def _later(self) -> object:
        return self.returned


def as_store(store: object) -> MessageStore:
    return cast("MessageStore", store)


def test_the_protocol_has_the_calls_that_are_tried_here() -> None:
    assert {"put_message", "get_message", "query_message", "messages", "topics"} <= set(CALLS)
    assert len(CALLS) >= 17


@pytest.mark.parametrize("name", [name for name in CALLS if name != "messages"])
async def test_every_call_reaches_the_inner_store_with_all_its_arguments(name: str) -> None:
    inner = RecordingStore()
    store: MessageStore = ForwardingMessageStore(as_store(inner))
    assert name in vars(ForwardingMessageStore)
    signature = inspect.signature(getattr(ForwardingMessageStore, name))
    assert signature == inspect.signature(getattr(MessageStore, name))
    parameters = list(signature.parameters.values())[1:]
    sent: dict[str, Any] = {one.name: object() for one in parameters}
    by_name = {one.name: sent[one.name] for one in parameters if one.kind is one.KEYWORD_ONLY}
    by_place = [sent[one.name] for one in parameters if one.kind is not one.KEYWORD_ONLY]

    answer = getattr(store, name)(*by_place, **by_name)
    result = await answer if inspect.isawaitable(answer) else answer
    assert result is (None if name == "delete_topics" else inner.returned)
    ((called, given, named),) = inner.calls
    bound = inspect.signature(getattr(MessageStore, name)).bind(None, *given, **named)
    assert called == name
    assert {key: bound.arguments[key] for key in sent} == sent


@pytest.mark.parametrize("name", CALLS)
async def test_defaults_are_those_of_the_protocol(name: str) -> None:
    for mine, given in zip(
        inspect.signature(getattr(ForwardingMessageStore, name)).parameters.values(),
        inspect.signature(getattr(MessageStore, name)).parameters.values(),
        strict=True,
    ):
        assert mine.default == given.default


class Telling(ForwardingMessageStore):
    """Says when it is opened and closed."""

    def __init__(
        self, inner: MessageStore, said: list[str], failing: dict[str, BaseException] | None = None
    ) -> None:
        super().__init__(inner)
        self.said = said
        self.failing = failing or {}

    async def start(self) -> None:
        self.said.append("start")
        if "start" in self.failing:
            raise self.failing["start"]

    async def stop(self) -> None:
        self.said.append("stop")
        if "stop" in self.failing:
            raise self.failing["stop"]


async def test_the_inner_store_opens_first_and_closes_last() -> None:
    said: list[str] = []
    store = Telling(as_store(RecordingStore(said)), said)
    async with store as opened:
        assert opened is store
        assert said == ["inner opened", "start"]
        with pytest.raises(RuntimeError, match="open already"):
            await store.__aenter__()
    assert said == ["inner opened", "start", "stop", "inner closed"]
    async with store:  # and once more
        pass
    assert said[4:] == said[:4]


@pytest.mark.parametrize("error", [ValueError("no"), asyncio.CancelledError()])
async def test_a_start_that_fails_closes_the_inner_store(error: BaseException) -> None:
    said: list[str] = []
    store = Telling(as_store(RecordingStore(said)), said, {"start": error})
    with pytest.raises(type(error)):
        await store.__aenter__()
    assert said == ["inner opened", "start", f"inner closed by {type(error).__name__}"]


async def test_where_the_inner_store_does_not_open_nothing_is_started() -> None:
    said: list[str] = []
    store = Telling(as_store(RecordingStore(said, opened=ValueError("no"))), said)
    with pytest.raises(ValueError, match="no"):
        await store.__aenter__()
    assert said == ["inner opened"]
    await store.__aexit__(None, None, None)
    assert said == ["inner opened"]


async def test_a_stop_that_fails_closes_the_inner_store_all_the_same() -> None:
    said: list[str] = []
    store = Telling(as_store(RecordingStore(said)), said, {"stop": ValueError("no")})
    with pytest.raises(ValueError, match="no"):
        async with store:
            pass
    assert said == ["inner opened", "start", "stop", "inner closed by ValueError"]


async def test_an_error_of_the_block_reaches_both_and_goes_on() -> None:
    said: list[str] = []
    with pytest.raises(KeyError):
        async with Telling(as_store(RecordingStore(said)), said):
            raise KeyError("x")
    assert said == ["inner opened", "start", "stop", "inner closed by KeyError"]


class Masking(ForwardingMessageStore):
    """Hides secret messages from readers."""

    async def get_message(self, *given: Any, **named: Any) -> GetMessageResult:
        result = await super().get_message(*given, **named)
        return replace(result, messages=[one for one in result.messages if one.body != b"secret"])


async def test_an_iteration_reads_by_the_get_message_of_a_subclass(tmp_path: Path) -> None:
    async with Masking(LocalMessageStore(tmp_path)) as store:
        for body in (b"one", b"secret", b"two"):
            await store.put_message(NewMessage("Orders", 0, body))
        messages = store.messages("g", "Orders", 0)
        assert [(await anext(messages)).body for _ in range(2)] == [b"one", b"two"]
        await messages.aclose()


async def test_a_plug_in_below_the_tiering_one_masks_the_hot_log_alone(tmp_path: Path) -> None:
    """The tier is fed from the CommitLog, as RocketMQ's is."""
    world = TieredWorld(tmp_path / "store", SystemClock())
    bodies = [b"secret", b"one", b"secret", b"secret", b"two"]
    local = world.local
    store = TieredMessageStore(
        Masking(local), local=local, config=world.config(), open_tier=world.own
    )
    async with store:
        for body in bodies:
            await store.put_message(NewMessage("Orders", 0, body))
        await world.commit(store)
        for level, seen in (("NOT_IN_DISK", [b"one", b"two"]), ("FORCE", bodies)):
            await store.set_level(level)
            result = await store.get_message("g", "Orders", 0, 0)
            assert [one.body for one in result.messages] == seen
            assert (result.status, result.next_offset) == (FetchStatus.FOUND, 5)
            messages = store.messages("g", "Orders", 0)
            assert [(await anext(messages)).body for _ in seen] == seen
            await messages.aclose()
