"""Metrics of the server, read at each scrape."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from tieredstore.serve.server import Server


class ServeMoment(NamedTuple):
    """Sample of a server, taken on its event loop."""

    connections: int
    connections_refused: int
    groups: int
    members: int
    held: int
    moved: int
    lost: int
    age_s: float
    requests: dict[tuple[str, str], int]
    passed: int | None
    """Requests that passed a proxy; None without one."""
    is_alone: bool
    registered: int | None
    """Name servers that have the server as a slave; None without a registration."""

    @classmethod
    def of(cls, server: Server) -> "ServeMoment":
        """Take a sample. O(groups)."""
        return cls(
            server.connections,
            server.refused_connections,
            len(server.groups),
            server.groups.members,
            len(server.consuming.held),
            server.consuming.moved,
            server.history.lost,
            server.history.age_s,
            dict(server.requests),
            None if server.proxy is None else server.proxy.passed,
            server.proxy is not None and server.proxy.is_alone,
            None if server.slave is None else server.slave.registered,
        )


class ServeMetrics(Collector):
    """Clients, groups and requests."""

    def __init__(self, look: Callable[[], ServeMoment]) -> None:
        """`look` takes the sample; the thread that serves a scrape calls it."""
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """All families of one scrape."""
        moment = self._look()
        gauges = [
            ("connections", "Connections of clients.", moment.connections),
            ("groups", "Consumer groups with a client.", moment.groups),
            ("consumers", "Clients in consumer groups.", moment.members),
            ("pulls_held", "Pulls that wait for a message.", moment.held),
            ("tier_age_seconds", "Time since the tier was looked at with success.", moment.age_s),
        ]
        if moment.passed is not None:
            up = "Whether the broker behind the proxy is reachable."
            gauges.append(("broker_up", up, not moment.is_alone))
        if moment.registered is not None:
            text = "Name servers that have the server as a slave of the broker."
            gauges.append(("name_servers_registered", text, moment.registered))
        for name, text, value in gauges:
            yield GaugeMetricFamily(f"tieredstore_serve_{name}", text, value=value)
        counters = [
            (
                "connections_refused",
                "Connections that were refused, because too many were open.",
                moment.connections_refused,
            ),
            (
                "offsets_moved",
                "Pulls from offsets that the tier does not have, which go on at another one.",
                moment.moved,
            ),
            (
                "messages_lost",
                "Messages in gaps that groups have passed, once for each group.",
                moment.lost,
            ),
        ]
        if moment.passed is not None:
            text = "Requests that went to the broker, or to a name server."
            counters.append(("requests_passed", text, moment.passed))
        for name, text, value in counters:
            yield CounterMetricFamily(f"tieredstore_serve_{name}", text, value=value)
        requests = CounterMetricFamily(
            "tieredstore_serve_requests",
            "Requests that were answered, by RocketMQ's names of request and response.",
            labels=("request", "response"),
        )
        for labels, count in moment.requests.items():
            requests.add_metric(labels, count)
        yield requests
