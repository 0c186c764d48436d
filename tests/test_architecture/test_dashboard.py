"""The dashboard in conf/: every panel asks for metrics that exist, by labels that they have."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.registry import Collector

import tieredstore
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import SystemClock
from provider.object.store import RequestMeter
from provider.stores.metered import MeteredStore, ProviderMetrics
from provider.testing.memory import MemoryStore
from tests.support.fake_broker import FakeBroker
from tests.support.read_tier import MemoryTier
from tieredstore.config.prices import PriceTable
from tieredstore.metrics.families import ROCKETMQ_LABELS, TieringMetrics
from tieredstore.metrics.reads import Caller, ReadMeter
from tieredstore.session.owner import Spending

pytestmark = pytest.mark.checkout

DASHBOARD = json.loads((Path(__file__).parents[2] / "conf/grafana.json").read_text())
PRICES = PriceTable.read("")
EVERYWHERE = {"cluster", "node_id"}
WORDS = {"$__rate_interval": "5m"}
"""What Grafana puts in place of its variables where PromQL wants no text."""


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    for word, value in WORDS.items():
        found = [text.replace(word, value) for text in found]
    return found


def selectors(node: Any) -> Iterator[Any]:
    """Every selector of an expression, whatever is around it."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    parts = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "param")]
    parts += [getattr(node, "vector_selector", None), *getattr(node, "args", [])]
    for part in parts:
        if part is not None:
            yield from selectors(part)


def labels_of(collector: Collector | CollectorRegistry) -> dict[str, set[str]]:
    """The labels of each sample name, of families without samples, too."""
    known: dict[str, set[str]] = {}
    for family in collector.collect():
        declared = set(getattr(family, "_labelnames", ()))
        more = {"le"} if family.type == "histogram" else set[str]()
        if family.name.startswith("rocketmq_"):
            more |= set(ROCKETMQ_LABELS)
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        for suffix in suffixes.get(family.type, [""]):
            known.setdefault(family.name + suffix, set()).update(declared, more, EVERYWHERE)
        for sample in family.samples:
            known.setdefault(sample.name, set()).update(sample.labels, more, EVERYWHERE)
    return known


@pytest.fixture
async def known(tmp_path: Path) -> dict[str, set[str]]:
    """Every metric of a page, with its labels."""
    broker = FakeBroker(tmp_path / "store")
    broker.put("A", 0, b"body")
    counted, process = CollectorRegistry(), CollectorRegistry()
    ProcessCollector(registry=process)
    store = MeteredStore(MemoryStore(), clock=SystemClock(), metrics=ProviderMetrics(counted))
    await store.create("one", [b"bytes"])
    await store.read("one")
    async with tieredstore.follow(broker.directory, tmp_path / "tier", broker="b") as follower:
        await follower.drain()
        meter = ReadMeter(counted, SystemClock())
        caller = Caller("get_message", "A", "g")
        await meter.timed(caller, asyncio.sleep(0))
        meter.gave(caller, 1)
        meter.fell_back(caller)
        fetch = TieredMessageFetcher(MemoryTier()).statistics()
        moment = replace(follower.moment(), fetch=fetch)
        tiering = TieringMetrics(lambda: moment, "1.2.3")
        spending = Spending({"first": RequestMeter()}, PRICES)
        parts = (tiering, counted, process, spending)
        return {name: labels for part in parts for name, labels in labels_of(part).items()}


def test_every_metric_of_a_panel_exists_with_its_labels(known: dict[str, set[str]]) -> None:
    asked: set[str] = set()
    for text in expressions():
        found = list(selectors(promql_parser.parse(text)))
        assert found, text
        for one in found:
            labels = {matcher.name for matcher in one.matchers.matchers}
            assert labels >= EVERYWHERE, f"{text} is of every broker"
            assert labels <= known.get(one.name, set()), (text, one.name)
        grouped = {
            label.strip() for by in re.findall(r"by \(([^)]*)\)", text) for label in by.split(",")
        }
        assert all(grouped <= known[one.name] for one in found), text
        asked |= {one.name for one in found}
    troubles = {"tieredstore_messages_lost", "tieredstore_queues", "tieredstore_outage"}
    assert asked >= troubles
    assert len(asked) > 20


def test_every_panel_is_a_panel_of_its_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    for panel in panels():
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            if grouped:
                kept = {label.strip() for label in grouped[0].split(",")}
                assert shown <= kept, (panel["title"], shown)


def test_its_variables_are_labels_of_a_metric_that_is_always_there(
    known: dict[str, set[str]],
) -> None:
    queries = [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    assert {one["name"] for one in queries} == EVERYWHERE
    for one in queries:
        metric, label = re.fullmatch(
            r"label_values\((\w+)(?:{[^}]*})?, (\w+)\)", one["query"]
        ).groups()  # type: ignore[union-attr]
        assert label in known[metric]
        assert label == one["name"]
