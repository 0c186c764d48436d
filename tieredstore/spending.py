"""What a tier in an object store has cost so far, as metrics."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from provider.object.store import REQUEST_KINDS, RequestMeter
from tieredstore.config.prices import PriceTable


class Spending(Collector):
    """Requests by store and kind, and what they cost by a table of prices."""

    def __init__(self, meters: Mapping[str, RequestMeter], prices: PriceTable) -> None:
        """`meters` by the store, as metrics name it: of each that bills requests."""
        self._meters = meters
        self._prices = prices

    def collect(self) -> Iterable[Metric]:
        """The counters of now."""
        requests = CounterMetricFamily(
            "tieredstore_object_store_requests",
            "Requests to the object store, by store and the kind that it bills.",
            labels=["store", "kind"],
        )
        cost = CounterMetricFamily(
            "tieredstore_object_store_request_cost",
            "Estimated cost of those requests, in the currency of the price table.",
            labels=["store", "currency"],
        )
        for store, meter in self._meters.items():
            for kind in REQUEST_KINDS:
                requests.add_metric([store, kind], meter.requests[kind])
            cost.add_metric([store, self._prices.currency], self._prices.spent(meter))
        yield requests
        yield cost
