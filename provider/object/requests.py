"""Requests that a store has made, by what a service bills them as."""

from collections import Counter
from typing import Final, Literal

RequestKind = Literal["PUT", "GET", "HEAD", "LIST", "DELETE"]
REQUEST_KINDS: Final[tuple[RequestKind, ...]] = ("PUT", "GET", "HEAD", "LIST", "DELETE")


class RequestMeter:
    """Counters that only grow. A request counts when it is sent, however it ends.

    What a client library repeats by itself is not seen here: a service in trouble bills more.
    """

    def __init__(self) -> None:
        self.requests: Counter[RequestKind] = Counter()

    def __repr__(self) -> str:
        return f"<RequestMeter {dict(self.requests)}>"

    @property
    def writes(self) -> int:
        """Requests that change something."""
        return self.requests["PUT"] + self.requests["DELETE"]

    @property
    def total(self) -> int:
        """All requests."""
        return self.requests.total()

    def made(self, kind: RequestKind) -> None:
        """Count one request that is about to be sent."""
        self.requests[kind] += 1
