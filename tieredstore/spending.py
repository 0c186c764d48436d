"""What a tier in an object store has cost so far, as metrics."""

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from provider.object.requests import REQUEST_KINDS, RequestMeter
from tieredstore.config.prices import PriceTable


class Spending(Collector):
    """Requests by kind, and what they cost by a table of prices."""

    def __init__(self, meter: RequestMeter, prices: PriceTable) -> None:
        self._meter = meter
        self._prices = prices

    def collect(self) -> Iterable[Metric]:
        """The counters of now."""
        requests = CounterMetricFamily(
            "tieredstore_object_store_requests",
            "Requests to the object store, by the kind that it bills.",
            labels=["kind"],
        )
        for kind in REQUEST_KINDS:
            requests.add_metric([kind], self._meter.requests[kind])
        yield requests
        cost = CounterMetricFamily(
            "tieredstore_object_store_request_cost",
            "Estimated cost of those requests, in the currency of the price table.",
            labels=["currency"],
        )
        cost.add_metric([self._prices.currency], self._prices.spent(self._meter))
        yield cost
