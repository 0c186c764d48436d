"""`messageStorePlugIn`: what is found and built, in which order, and how a failure is said."""

import ast
import asyncio
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import tieredstore
from provider.errors import Closed
from provider.testing.manual_clock import ManualClock
from tests.support.hot_store import SMALL, new_message
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.store import protocol
from tieredstore.store.local import LocalMessageStore
from tieredstore.store.plugins import (
    CALLS,
    ForwardingMessageStore,
    PluggedStore,
    PluginContext,
    StoreLayers,
    build_layers,
    opened,
)
from tieredstore.store.protocol import MessageStore
from tieredstore.store.tiered import TieredMessageStore

EXAMPLE = Path(__file__).parents[2] / "support" / "example_plugin"
JAVA_TIERED = "org.apache.rocketmq.tieredstore.TieredMessageStore"
MODULE = """
from tieredstore.store.plugins import ForwardingMessageStore

class Outer(ForwardingMessageStore):
    def __init__(self, context, inner):
        super().__init__(inner)
        self.context = context

class Inner(Outer):
    pass

class Failing(Outer):
    def __init__(self, context, inner):
        raise KeyError("no\\nkey")

class Stopping(Outer):
    async def start(self):
        self._look_up()

    def _look_up(self):
        {}["key"]

class Waiting(ForwardingMessageStore):
    async def stop(self):
        raise ValueError("late")

def with_context(make):
    return lambda context, inner: make(inner)

made = with_context(Waiting)
number = 17

def nothing(context, inner):
    pass

class Half:
    def __init__(self, context, inner):
        pass

    async def put_message(self, message):
        pass
"""


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of a user's, and the example with the metadata of an installed distribution."""
    (tmp_path / "acme_stores.py").write_text(MODULE)
    (tmp_path / "acme_broken.py").write_text("import acme_stores\nraise ImportError('no driver')\n")
    (tmp_path / "acme_lacking.py").write_text("import a_driver_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLE)
    yield
    for name in list(sys.modules):
        if name.startswith(("acme_", "topic_quota")):
            del sys.modules[name]


def context_of(tmp_path: Path, *names: str, **settings: object) -> PluginContext:
    given = {
        "messageStorePlugIn": ",".join(names) or "tieredstore.TieredMessageStore",
        "tieredStoreFilePath": tmp_path / "tier",
        "storePathRootDir": tmp_path / "store",
        "brokerName": "broker-a",
        **settings,
    }
    config = Config.load(settings=given, environment={})
    clock = ManualClock()
    local = LocalMessageStore(config.store_dir, options=SMALL, clock=clock)
    return PluginContext(config, local, clock)


def built(tmp_path: Path, *names: str, **settings: object) -> StoreLayers:
    return build_layers(context_of(tmp_path, *names, **settings))


def test_the_plug_in_for_java_brokers_is_passed_over_with_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = "tieredstore.TieredMessageStore"
    assert built(tmp_path, "io.tieredstore.rocketmq.TieredStorePlugin").plug_ins == []
    assert "is a plug-in for Java brokers, and is passed over here" in caplog.text
    layers = built(tmp_path, "io.tieredstore.rocketmq.TieredStorePlugin", ours)
    assert [name for name, _ in layers.plug_ins] == [ours]


def refused(tmp_path: Path, *names: str) -> str:
    with pytest.raises(ConfigError) as failure:
        built(tmp_path, *names)
    text = str(failure.value)
    assert "\n" not in text
    assert "(messageStorePlugIn, settings)" in text
    assert not (tmp_path / "store").exists()
    return text


def chain(store: MessageStore) -> list[str]:
    names: list[str] = []
    while isinstance(store, ForwardingMessageStore):
        names.append(type(store).__name__)
        store = store.inner
    return [*names, type(store).__name__]


def test_the_first_name_is_the_outermost_store(tmp_path: Path) -> None:
    layers = built(tmp_path, "acme_stores.Outer", "acme_stores:Inner")
    assert chain(layers.outermost) == ["Outer", "Inner", "LocalMessageStore"]
    assert [name for name, _ in layers.plug_ins] == ["acme_stores.Outer", "acme_stores:Inner"]
    assert layers.plug_ins[0][1] is layers.outermost
    assert layers.tiered is None


def test_a_function_may_make_the_store(tmp_path: Path) -> None:
    assert chain(built(tmp_path, "acme_stores.made").outermost)[0] == "Waiting"


def test_without_a_plug_in_there_is_the_hot_log_alone(tmp_path: Path) -> None:
    context = context_of(tmp_path)
    layers = build_layers(context, [])
    assert layers.outermost is context.local


@pytest.mark.parametrize("name", ["tieredstore.TieredMessageStore", JAVA_TIERED])
def test_ours_goes_through_the_same_door_by_both_names(tmp_path: Path, name: str) -> None:
    layers = built(tmp_path, "acme_stores.Outer", name, "acme_stores.Inner")
    assert isinstance(layers.tiered, TieredMessageStore)
    assert layers.plug_ins[1][1] is layers.tiered
    assert isinstance(built(tmp_path).tiered, TieredMessageStore), "it is the default"


def test_a_plug_in_is_told_everything_that_is_configured(tmp_path: Path) -> None:
    settings: dict[str, object] = {"quota.messages": 7, "maxMessageSize": 1000}
    layers = built(tmp_path, "acme_stores.Outer", **settings)
    context: PluginContext = cast("Any", layers.outermost).context
    assert context.settings["quota.messages"] == "7"
    assert context.settings["maxMessageSize"] == 1000
    assert context.settings["brokerClusterName"] == "DefaultCluster"
    assert (context.cluster, context.broker) == ("DefaultCluster", "broker-a")
    assert context.root == tmp_path / "store"
    assert context.config.dispatch.batch_messages_max == 4096
    for change in ("config", "clock"):
        with pytest.raises(AttributeError):
            setattr(context, change, None)
    with pytest.raises(TypeError):
        cast("Any", context.settings)["a"] = 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing.there.Store", "is not installed: there is no module nothing; install"),
        ("acme_stores.there.Store", "is not installed: there is no module acme_stores.there"),
        ("acme_stores.Outr", "is not in the module acme_stores: did you mean Outer?"),
        ("acme_stores.zzzzzz", "is not in the module acme_stores"),
        ("acme_broken.Store", "cannot be imported: ImportError: no driver"),
        ("acme_lacking.Store", "cannot be imported: ModuleNotFoundError: No module named 'a_dri"),
        ("acme_stores.Failing", "cannot be made: KeyError: 'no"),
        ("acme_stores.number", "is nothing that can be called"),
        ("acme_stores.nothing", "made nothing, which is no message store: it lacks"),
        ("acme_stores.Half", "made an object of Half, which is no message store: it lacks __aent"),
        ("audit", "is no name of an installed plug-in (entry points tieredstore.plugins: topic-q"),
        ("org.apache.rocketmq.acme.Store", "is a Java class, which is not loaded here"),
        ("com.acme.Store", "is a Java class, which is not loaded here: leave it out"),
        (":", "is no name of an installed plug-in"),
        ("acme_stores:", "is no name of an installed plug-in"),
        (".acme", "is no name of an installed plug-in"),
    ],
)
def test_a_plug_in_that_fails_is_named_and_nothing_is_left(
    tmp_path: Path, name: str, words: str
) -> None:
    text = refused(tmp_path, "acme_stores.Outer", name)
    assert text.startswith(f"the plug-in {name} (")
    assert words in text


def shape_of(call: object) -> list[tuple[str, object, object]]:
    """What a call takes: names, kinds and defaults."""
    parameters = inspect.signature(cast("Any", call)).parameters.values()
    return [(one.name, one.kind, one.default) for one in parameters]


@pytest.mark.parametrize(
    "kind", [LocalMessageStore, TieredMessageStore, ForwardingMessageStore, PluggedStore]
)
def test_every_store_has_exactly_the_calls_of_the_protocol(kind: type) -> None:
    written = ast.parse(Path(protocol.__file__).read_text()).body
    (declared,) = [
        one for one in written if isinstance(one, ast.ClassDef) and one.name == "MessageStore"
    ]
    calls = [
        one.name for one in declared.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert sorted(calls) == sorted(CALLS)
    assert len(calls) >= 20
    for name in calls:
        assert shape_of(getattr(kind, name)) == shape_of(getattr(MessageStore, name)), name


def test_what_lacks_one_call_is_no_store(tmp_path: Path) -> None:
    """Such as a plug-in of before that call came."""
    (tmp_path / "acme_older.py").write_text(
        "from tieredstore.store.plugins import ForwardingMessageStore\n"
        "class Older(ForwardingMessageStore):\n"
        "    def __init__(self, context, inner):\n"
        "        super().__init__(inner)\n"
        "        self.delete_topics = None\n"
    )
    assert "it lacks delete_topics; derive it from" in refused(tmp_path, "acme_older.Older")


async def test_a_plug_in_counts_in_the_registry_that_the_metrics_page_shows(tmp_path: Path) -> None:
    (tmp_path / "acme_counting.py").write_text(
        "from prometheus_client import Counter\n"
        "from tieredstore.store.plugins import ForwardingMessageStore\n"
        "class Counting(ForwardingMessageStore):\n"
        "    def __init__(self, context, inner):\n"
        "        super().__init__(inner)\n"
        "        self.put = Counter('acme_put', 'Messages.', registry=context.registry)\n"
        "    async def put_message(self, message):\n"
        "        self.put.inc()\n"
        "        return await super().put_message(message)\n"
    )
    context = context_of(tmp_path, "acme_counting.Counting", "tieredstore.TieredMessageStore")
    layers = await asyncio.to_thread(build_layers, context)
    assert layers.tiered is not None
    assert layers.tiered.registry is context.registry
    with pytest.raises(Closed):
        await layers.outermost.put_message(new_message(0))
    counted = {
        sample.name: (sample.value, sample.labels)
        for family in context.registry.collect()
        for sample in family.samples
    }
    assert counted["acme_put_total"] == (1, {})


def test_a_plug_in_is_named_once(tmp_path: Path) -> None:
    assert "is named twice" in refused(tmp_path, "acme_stores.Outer", "acme_stores.Outer")


async def test_the_layers_open_from_the_inside_and_serve(tmp_path: Path) -> None:
    context = context_of(tmp_path, "acme_stores.Outer", "acme_stores.Inner")
    async with opened(context, await asyncio.to_thread(build_layers, context)) as layers:
        placed = await layers.outermost.put_message(new_message(0))
        assert placed.queue_offset == 0
        assert await layers.outermost.max_offset("Orders", 0) == 1
    assert not (tmp_path / "store" / "abort").exists(), "it was closed"


async def test_a_plug_in_that_fails_when_it_opens_is_named_and_nothing_is_open(
    tmp_path: Path,
) -> None:
    context = context_of(tmp_path, "acme_stores.Outer", "acme_stores.Stopping")
    with pytest.raises(ConfigError, match=r"acme_stores.Stopping .* cannot be opened: KeyError"):
        async with opened(context, await asyncio.to_thread(build_layers, context)):
            pass
    assert not (tmp_path / "store" / "abort").exists()
    again = context_of(tmp_path, "acme_stores.Outer")
    async with opened(again, await asyncio.to_thread(build_layers, again)):
        pass


async def test_an_error_at_the_end_is_raised_as_it_is(tmp_path: Path) -> None:
    context = context_of(tmp_path, "acme_stores.made")
    with pytest.raises(ValueError, match="late") as failure:
        async with opened(context, await asyncio.to_thread(build_layers, context)):
            pass
    noted = "a failure of the plug-in acme_stores.made (messageStorePlugIn, settings)"
    assert failure.value.__notes__ == [noted]
    assert not (tmp_path / "store" / "abort").exists()


async def test_a_store_that_cannot_be_opened_is_no_plug_ins_fault(tmp_path: Path) -> None:
    context = context_of(tmp_path, "acme_stores.Outer")
    await context.local.__aenter__()
    with pytest.raises(RuntimeError, match="open already"):
        async with opened(context, await asyncio.to_thread(build_layers, context)):
            pass
    await context.local.__aexit__(None, None, None)


async def test_a_users_package_is_taken_by_its_entry_point(tmp_path: Path) -> None:
    context = context_of(tmp_path, "topic-quota", **{"quota.messages": 2})
    async with opened(context, await asyncio.to_thread(build_layers, context)) as layers:
        store = layers.outermost
        for number in range(2):
            await store.put_message(new_message(number))
        with pytest.raises(ValueError, match="more than 2 messages of Orders in a second"):
            await store.put_messages([new_message(2), new_message(3, topic="Other")])
        assert await store.max_offset("Other", 0) == 0, "all or none"
        await cast("ManualClock", context.clock).advance(1)
        await store.put_message(new_message(2))
        assert store.statistics()["quota_refused"] == 1


async def test_open_store_has_the_plug_ins_that_are_configured(tmp_path: Path) -> None:
    names = "acme_stores.Outer,tieredstore.TieredMessageStore,acme_stores.Inner"
    given = {"messageStorePlugIn": names}
    where = tmp_path / "store", tmp_path / "tier"
    store = await asyncio.to_thread(
        tieredstore.open_store, *where, broker="b", settings=given, hot=SMALL, level="FORCE"
    )
    assert isinstance(store, PluggedStore)
    assert chain(store) == ["PluggedStore", "Outer", "TieredMessageStore"]
    async with store:
        assert store.level.name == "FORCE"
        await store.put_messages([new_message(number) for number in range(30)])
        await store.set_level("NOT_IN_DISK")
        assert (await store.get_message("g", "Orders", 0, 0)).messages
        assert store.location == str(store.directory)
        assert store.dispatch_statistics() is not None
    async with store:  # what was put was tiered at the end
        assert await store.commit_offset("Orders", 0) == 30
        await store.delete_topics(["Orders"])
        assert store.topics() == {}
    alone = await asyncio.to_thread(tieredstore.open_store, *where, broker="b", hot=SMALL)
    assert isinstance(alone, TieredMessageStore)


def test_open_store_says_what_fails_of_its_plug_ins(tmp_path: Path) -> None:
    for names, words in (
        ("acme_stores.Outer", "nothing would be tiered: add it"),
        ("acme_stores.Failing,tieredstore.TieredMessageStore", "cannot be made: KeyError"),
    ):
        given = {"messageStorePlugIn": names}
        with pytest.raises(ConfigError, match=words):
            tieredstore.open_store(tmp_path / "s", tmp_path / "t", broker="b", settings=given)
    assert list(tmp_path.glob("[st]")) == []
