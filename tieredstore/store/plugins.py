"""Plug-ins of `messageStorePlugIn`: their base, and how they are found, constructed and opened."""

import logging
import re
import sys
import traceback
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import getmembers, isfunction
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self, cast

from prometheus_client import CollectorRegistry

from container.record.message import StoredMessage
from dispatcher.statistics import DispatchStatistics
from provider.clock import Clock
from provider.errors import StoreError
from provider.setting import Value
from provider.stores.throttled import TransferLimits
from tieredstore.config.effective import Config
from tieredstore.config.keys import BROKER_PLUG_IN, OUR_PLUG_IN
from tieredstore.config.sources import PLUG_IN_NOTE, ConfigError
from tieredstore.hot.encoding import Appended, NewMessage
from tieredstore.hot.hot_log import HotLog
from tieredstore.lifetime import cause
from tieredstore.reader.cursor import Moment
from tieredstore.store.by_topic import TopicCalls
from tieredstore.store.cold_side import ColdSide
from tieredstore.store.iteration import messages_of
from tieredstore.store.levels import Level
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.protocol import (
    END_OF_TIME_MS,
    MESSAGES_MAX,
    Boundary,
    GetMessageResult,
    MessageStore,
    QueryResult,
    TimeRules,
)
from tieredstore.store.tiered import TieredMessageStore


class ForwardingMessageStore:
    """Forwards every call of `MessageStore` to `inner`. A subclass overrides the calls it changes.

    Each call costs one more function call. Arguments, results, errors and cancelling are those of
    `inner`. A subclass that has something to open and close overrides `start` and `stop`.
    """

    def __init__(self, inner: MessageStore) -> None:
        """Keep `inner`, which belongs to this store from now on. Opens nothing."""
        self._inner = inner
        self._stack: AsyncExitStack | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} around {self._inner!r}>"

    @property
    def inner(self) -> MessageStore:
        """Wrapped store."""
        return self._inner

    async def start(self) -> None:
        """Open the resources of this store. `inner` is open already.

        A failure closes `inner` again, and `stop` is not called.
        """

    async def stop(self) -> None:
        """Close the resources of this store. `inner` is closed afterwards, even if this raises."""

    async def __aenter__(self) -> Self:
        """Open `inner`, then call `start`. A failure, or cancelling, leaves nothing open.

        Raises:
            RuntimeError: it is open already.
        """
        if self._stack is not None:
            raise RuntimeError(f"{self!r} is open already")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._inner)
            await self.start()
            stack.push_async_callback(self.stop)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Call `stop`, then close `inner`. Does nothing if the store is not open."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, trace)

    async def put_message(self, message: NewMessage) -> Appended:
        """See `MessageStore.put_message`."""
        return await self._inner.put_message(message)

    async def put_messages(
        self, messages: Sequence[NewMessage], *, together: bool = False
    ) -> list[Appended]:
        """See `MessageStore.put_messages`."""
        return await self._inner.put_messages(messages, together=together)

    async def get_message(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        *,
        messages_max: int = MESSAGES_MAX,
        subscription: str | None = None,
        bytes_max: int | None = None,
    ) -> GetMessageResult:
        """See `MessageStore.get_message`."""
        return await self._inner.get_message(
            group,
            topic,
            queue_id,
            offset,
            messages_max=messages_max,
            subscription=subscription,
            bytes_max=bytes_max,
        )

    async def min_offset(self, topic: str, queue_id: int) -> int:
        """See `MessageStore.min_offset`."""
        return await self._inner.min_offset(topic, queue_id)

    async def max_offset(self, topic: str, queue_id: int) -> int:
        """See `MessageStore.max_offset`."""
        return await self._inner.max_offset(topic, queue_id)

    async def offset_by_time(
        self,
        topic: str,
        queue_id: int,
        timestamp_ms: Moment,
        boundary: Boundary = Boundary.LOWER,
        rules: TimeRules = TimeRules.LOCAL,
    ) -> int:
        """See `MessageStore.offset_by_time`."""
        return await self._inner.offset_by_time(topic, queue_id, timestamp_ms, boundary, rules)

    async def earliest_message_time(self, topic: str, queue_id: int) -> int | None:
        """See `MessageStore.earliest_message_time`."""
        return await self._inner.earliest_message_time(topic, queue_id)

    async def message_store_time(self, topic: str, queue_id: int, offset: int) -> int | None:
        """See `MessageStore.message_store_time`."""
        return await self._inner.message_store_time(topic, queue_id, offset)

    async def query_message(
        self,
        topic: str,
        key: str,
        *,
        messages_max: int = MESSAGES_MAX,
        begin_ms: Moment = 0,
        end_ms: Moment = END_OF_TIME_MS,
        newest_first: bool = True,
    ) -> QueryResult:
        """See `MessageStore.query_message`."""
        return await self._inner.query_message(
            topic,
            key,
            messages_max=messages_max,
            begin_ms=begin_ms,
            end_ms=end_ms,
            newest_first=newest_first,
        )

    async def delete_topics(self, topics: Collection[str]) -> None:
        """See `MessageStore.delete_topics`."""
        await self._inner.delete_topics(topics)

    async def clean_unused_topics(self, retained: Collection[str]) -> list[str]:
        """See `MessageStore.clean_unused_topics`."""
        return await self._inner.clean_unused_topics(retained)

    async def is_in_store(self, topic: str, queue_id: int, offset: int) -> bool:
        """See `MessageStore.is_in_store`."""
        return await self._inner.is_in_store(topic, queue_id, offset)

    async def is_in_memory(self, topic: str, queue_id: int, offset: int, messages: int = 1) -> bool:
        """See `MessageStore.is_in_memory`."""
        return await self._inner.is_in_memory(topic, queue_id, offset, messages)

    async def wait_for_message(
        self, topic: str, queue_id: int, offset: int, timeout_s: float
    ) -> bool:
        """See `MessageStore.wait_for_message`."""
        return await self._inner.wait_for_message(topic, queue_id, offset, timeout_s)

    def messages(
        self, group: str, topic: str, queue_id: int, start: int = 0
    ) -> AsyncGenerator[StoredMessage, None]:
        """See `MessageStore.messages`. Reads by this store's `get_message`, not by `inner`'s."""
        return messages_of(self, group, topic, queue_id, start)

    def topics(self) -> Mapping[str, int]:
        """See `MessageStore.topics`."""
        return self._inner.topics()

    def queue_ids(self, topic: str) -> Sequence[int]:
        """See `MessageStore.queue_ids`."""
        return self._inner.queue_ids(topic)

    def statistics(self) -> Mapping[str, float]:
        """See `MessageStore.statistics`."""
        return self._inner.statistics()


LOGGER = logging.getLogger("tieredstore.store")
GROUP = "tieredstore.plugins"
"""Entry point group by which a distribution gives its plug-ins short names."""
KEY = "messageStorePlugIn"
JAVA_TIERED = "org.apache.rocketmq.tieredstore.TieredMessageStore"
OURS = (OUR_PLUG_IN, JAVA_TIERED)
"""Names of the store that tiers."""
_NAME = re.compile(r"\w+(\.\w+)+|\w+(\.\w+)*:\w+(\.\w+)*")
JAVA_ROOTS = ("org.", "com.", "net.", "io.", "cn.")
"""First parts of the names of Java classes."""
CALLS = [
    name
    for name, _ in getmembers(MessageStore, isfunction)
    if not name.startswith("_") or name in ("__aenter__", "__aexit__")
]
"""Methods that a message store must have."""
MISSING_SAID_MAX = 3


@dataclass(frozen=True, slots=True)
class PluginContext:
    """Context that each plug-in is constructed with. Nothing is open yet."""

    config: Config
    """All settings, and the options of every layer that are built from them."""
    local: LocalMessageStore
    """Innermost store: the hot log."""
    clock: Clock
    """Source of the time. Plug-ins also sleep by it."""
    take_over: bool = False
    """Whether to take the tier over from a living owner."""
    level: Level | None = None
    """Level of reads from the tier; None: `tieredStorageLevel`."""
    continues: bool = True
    """Whether queues that end in the hot log below the tier continue at the tier's end."""
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    """Registry of the metrics page of `run`.

    A plug-in registers its metrics here, by its own names. The page adds the labels cluster and
    node_id.
    """

    @property
    def settings(self) -> Mapping[str, Value]:
        """Every value by its key: typed if `tieredstore config` explains the key, else a text.

        Texts are the given keys that neither this product nor a broker knows, such as a plug-in's
        own keys. A key with a dot (`audit.path`) can also be given by `-D`. O(keys).
        """
        known = {name: one.value for name, one in self.config.settings.items()}
        return MappingProxyType({**{one.name: one.text for one in self.config.foreign}, **known})

    @property
    def cluster(self) -> str:
        """`brokerClusterName`."""
        return self.config.cluster

    @property
    def broker(self) -> str:
        """`brokerName`."""
        return self.config.broker

    @property
    def root(self) -> Path:
        """Store directory. A plug-in may keep its own files in a directory below it."""
        return self.local.root


PlugIn = Callable[[PluginContext, MessageStore], MessageStore]


@dataclass(frozen=True, slots=True)
class StoreLayers:
    """Configured store with its plug-ins, closed or open."""

    outermost: MessageStore
    """Store to open and to use."""
    plug_ins: Sequence[tuple[str, MessageStore]]
    """Stores around the hot log with their names, the outermost first."""

    @property
    def tiered(self) -> TieredMessageStore | None:
        """Store that tiers; None if no name configures it."""
        return next((one for _, one in self.plug_ins if isinstance(one, TieredMessageStore)), None)


def build_layers(context: PluginContext, names: Sequence[str] | None = None) -> StoreLayers:
    """Find the plug-ins and build the store, from the last name to the first. Opens nothing.

    Imports the modules of the plug-ins, which blocks for as long as they take.

    Args:
        context: the argument of each plug-in.
        names: None: those of `messageStorePlugIn`.

    Raises:
        ConfigError: a plug-in is not installed, fails, or returns no store; names it.
    """
    wanted = list(context.config.plug_ins if names is None else names)
    if BROKER_PLUG_IN in wanted:
        wanted.remove(BROKER_PLUG_IN)
        LOGGER.warning(
            "%s (%s, %s) is a plug-in for Java brokers, and is passed over here",
            BROKER_PLUG_IN, KEY, context.config.settings[KEY].origin,
        )  # fmt: skip
    for name in wanted:
        if wanted.count(name) > 1:
            raise _refused(context, name, "is named twice")
    found = [(name, _found(context, name)) for name in wanted]
    outermost: MessageStore = context.local
    plug_ins: list[tuple[str, MessageStore]] = []
    for name, plug_in in reversed(found):
        try:
            outermost = plug_in(context, outermost)
        except (ConfigError, StoreError):
            raise
        except Exception as error:
            raise _failed(context, name, "cannot be made", error) from error
        if missing := [call for call in CALLS if not callable(getattr(outermost, call, None))]:
            raise _refused(
                context,
                name,
                f"made {_article(outermost)}, which is no message store: it lacks "
                f"{_listed(missing)}; derive it from tieredstore.ForwardingMessageStore",
            )
        plug_ins.insert(0, (name, outermost))
    return StoreLayers(outermost, plug_ins)


@asynccontextmanager
async def opened(context: PluginContext, layers: StoreLayers) -> AsyncGenerator[StoreLayers]:
    """Open all layers for the block, the hot log first. Close them in reverse order.

    Raises:
        ConfigError: a plug-in failed while it was opened; names it. Nothing is open then.
        StoreError: a store could not be opened or closed; see `TieredMessageStore`.
        And errors of the block or of a plug-in, with a note that names the plug-in.
    """
    try:
        await layers.outermost.__aenter__()
    except (ConfigError, StoreError):
        raise
    except Exception as error:
        name = _culprit(error, layers)
        if name is None:
            raise
        raise _failed(context, name, "cannot be opened", error) from error
    try:
        async with AsyncExitStack() as stack:
            stack.push_async_exit(layers.outermost.__aexit__)
            yield layers
    except Exception as error:
        raised = cause(error)
        if isinstance(raised, Exception) and (name := _culprit(raised, layers)):
            origin = context.config.settings[KEY].origin
            raised.add_note(f"{PLUG_IN_NOTE}{name} ({KEY}, {origin})")
        raise


def _found(context: PluginContext, name: str) -> PlugIn:
    if name in OURS:
        return _tiered
    named = entry_points(group=GROUP, name=name)
    if not named and not _NAME.fullmatch(name):
        known = sorted(one.name for one in entry_points(group=GROUP))
        raise _refused(
            context,
            name,
            f"is no name of an installed plug-in (entry points {GROUP}: "
            f"{', '.join(known) or 'none'}): write package.module.Class, or install it",
        )
    place = named[name] if named else _place_of(name)
    try:
        plug_in = place.load()
    except Exception as error:
        raise _not_loaded(context, name, place, error) from error
    if not callable(plug_in):
        raise _refused(context, name, "is nothing that can be called, such as a class")
    return cast("PlugIn", plug_in)  # the result is checked after the call


def _place_of(name: str) -> EntryPoint:
    """Return `package.module:Class` or `package.module.Class` as an entry point."""
    module, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    return EntryPoint(name, f"{module}:{attribute}", GROUP)


def _tiered(context: PluginContext, inner: MessageStore) -> MessageStore:
    """Construct the plug-in of this product."""
    return TieredMessageStore(
        inner,
        local=context.local,
        config=context.config,
        level=context.level,
        take_over=context.take_over,
        continues=context.continues,
        clock=context.clock,
        registry=context.registry,
    )


def _not_loaded(
    context: PluginContext, name: str, place: EntryPoint, error: Exception
) -> ConfigError:
    """Return the error for a plug-in that cannot be imported, with the likeliest cure."""
    module = place.module
    if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
        if name.startswith(JAVA_ROOTS):
            return _refused(
                context,
                name,
                f"is a Java class, which is not loaded here: leave it out; {OUR_PLUG_IN} is the "
                f"store that tiers",
            )
        return _refused(
            context,
            name,
            f"is not installed: there is no module {error.name}; install its package, or put the "
            f"directory that holds it into PYTHONPATH",
        )
    if isinstance(error, AttributeError) and module in sys.modules:
        there = [one for one in dir(import_module(module)) if not one.startswith("_")]
        if place.attr.partition(".")[0] not in there:
            near = get_close_matches(place.attr, there, 1)
            hint = f": did you mean {near[0]}?" if near else ""
            return _refused(context, name, f"is not in the module {module}{hint}")
    return _failed(context, name, "cannot be imported", error)


def _culprit(error: Exception, layers: StoreLayers) -> str | None:
    """Return the third-party plug-in in whose methods an error was raised last; None if none."""
    ours = {id(one) for _, one in layers.plug_ins if isinstance(one, TieredMessageStore)}
    names = {id(one): name for name, one in layers.plug_ins}
    last: int | None = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if id(owner) in names or isinstance(owner, LocalMessageStore):
            last = id(owner)
    return None if last is None or last in ours else names.get(last)


def _refused(context: PluginContext, name: str, reason: str) -> ConfigError:
    origin = context.config.settings[KEY].origin
    return ConfigError(f"the plug-in {name} ({KEY}, {origin}) {reason}")


def _failed(context: PluginContext, name: str, what: str, error: Exception) -> ConfigError:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _refused(context, name, f"{what}: {' '.join(text.split())}")


def _article(found: object) -> str:
    return "nothing" if found is None else f"an object of {type(found).__name__}"


def _listed(missing: Sequence[str]) -> str:
    more = len(missing) - MISSING_SAID_MAX
    return f"{', '.join(missing[:MISSING_SAID_MAX])}{f' and {more} more' if more > 0 else ''}"


class PluggedStore(ForwardingMessageStore, TopicCalls):
    """Configured store.

    `MessageStore` calls go to the outermost plug-in, others to the tiered store. Entering the block
    raises the errors of `TieredMessageStore`, and ConfigError for a plug-in that fails. A later
    error of a plug-in has a note that names it.
    """

    def __init__(self, context: PluginContext, layers: StoreLayers) -> None:
        """Keep the layers. They are opened when the block is entered."""
        super().__init__(layers.outermost)
        self._context = context
        self._layers = layers
        self._tiered = tiering_of(context, layers)

    async def __aenter__(self) -> Self:
        """Open the hot log, then the plug-ins, the outermost last."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(opened(self._context, self._layers))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close them in reverse order; see `TieredMessageStore`."""
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.__aexit__(kind, error, trace)

    @property
    def log(self) -> HotLog:
        """See `TieredMessageStore.log`. Internal."""
        return self._tiered.log

    @property
    def level(self) -> Level:
        """See `TieredMessageStore.level`."""
        return self._tiered.level

    @property
    def directory(self) -> Path:
        """See `TieredMessageStore.directory`."""
        return self._tiered.directory

    @property
    def location(self) -> str:
        """See `TieredMessageStore.location`."""
        return self._tiered.location

    @property
    def limits(self) -> TransferLimits:
        """See `TieredMessageStore.limits`."""
        return self._tiered.limits

    @property
    def cold(self) -> ColdSide | None:
        """See `TieredMessageStore.cold`. Internal."""
        return self._tiered.cold

    @property
    def awaited(self) -> StoreError | None:
        """See `TieredMessageStore.awaited`."""
        return self._tiered.awaited

    async def set_level(self, level: Level | str | int) -> None:
        """See `TieredMessageStore.set_level`."""
        await self._tiered.set_level(level)

    async def commit_offset(self, topic: str, queue_id: int) -> int:
        """See `TieredMessageStore.commit_offset`."""
        return await self._tiered.commit_offset(topic, queue_id)

    async def set_retention(self, topic: str, hours: int | None) -> None:
        """See `TieredMessageStore.set_retention`."""
        await self._tiered.set_retention(topic, hours)

    def dispatch_statistics(self) -> DispatchStatistics | None:
        """See `TieredMessageStore.dispatch_statistics`."""
        return self._tiered.dispatch_statistics()


def tiering_of(context: PluginContext, layers: StoreLayers) -> TieredMessageStore:
    """Return the store among the layers that tiers.

    Raises:
        ConfigError: there is none.
    """
    if layers.tiered is None:
        origin = context.config.settings[KEY].origin
        raise ConfigError(
            f"{KEY} ({origin}) names no tieredstore.TieredMessageStore, so nothing would be tiered:"
            " add it, as the last name"
        )
    return layers.tiered
