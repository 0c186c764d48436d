"""Proxy in front of a broker: requests pass to it, and deleted messages come from the tier."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import orjson

from provider.clock import Clock, within
from tieredstore.serve.broker.mending import Mender, Mending, answer_of
from tieredstore.serve.broker.slave import copy_offsets
from tieredstore.serve.groups import Groups
from tieredstore.serve.naming import Identity, Naming
from tieredstore.serve.wire.frame import Command, RequestCode, ResponseCode
from tieredstore.serve.wire.link import Address, Link, Unreachable, reason_of
from tieredstore.serve.wire.passing import Part, PassingConnection, Upstream
from tieredstore.serve.wire.request import (
    Answer,
    Outcome,
    Peer,
    Processor,
    Refused,
    Request,
    objects_of,
)
from tieredstore.session.consumer_offsets import ConsumerOffsets, quoted_keys

LOGGER = logging.getLogger("tieredstore.serve")
CONNECT_S_MAX = 3.0
LOOK_S = 1.0
"""Pause between two attempts to reach a server that is down."""
COPY_S = 10.0
"""Seconds between two copies of the broker's offsets of groups, as of a slave."""
MASTER_ID = "0"
NAME_REQUESTS = frozenset(
    {
        RequestCode.PUT_KV_CONFIG,
        RequestCode.GET_KV_CONFIG,
        RequestCode.DELETE_KV_CONFIG,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.UPDATE_NAMESRV_CONFIG,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.ADD_WRITE_PERM_OF_BROKER,
    }
)
"""Requests that clients and tools send to a name server."""


class Endpoint:
    """Addresses of a server behind the proxy, the present one first."""

    def __init__(self, part: Part, addresses: Sequence[Address]) -> None:
        self.part = part
        self.addresses = list(addresses)
        self.failure = "it has not answered yet"
        """Reason why it is not asked; "" while it is."""

    @property
    def name(self) -> str:
        """Name of the server in sentences."""
        where = self.addresses[0] if self.addresses else "(namesrvAddr is empty)"
        return f"{self.part.value} {where}"

    def failed(self, reason: str) -> None:
        """Log a failure, once."""
        if not self.failure:
            LOGGER.warning("%s is not asked: %s", self.name, reason)
        self.failure = reason

    def succeeded(self) -> None:
        """Log the first success."""
        if self.failure:
            LOGGER.info("%s is asked", self.name)
        self.failure = ""


class Proxy:
    """Decisions about requests and answers, and the state of the servers behind."""

    def __init__(
        self,
        broker: Address,
        names: Sequence[Address],
        identity: Identity,
        *,
        naming: Naming,
        groups: Groups,
        offsets: ConsumerOffsets,
        mending: Mending,
        alone: Mapping[int, Processor],
        is_behind: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """`alone`: processors of requests while the broker is down."""
        self.broker = Endpoint(Part.BROKER, [broker])
        self.names = Endpoint(Part.NAMES, names)
        self.awaited_bytes = 0
        self.passed = 0
        """Requests that went to the broker or to a name server."""
        self._identity = identity
        self._naming = naming
        self._groups = groups
        self._offsets = offsets
        self._alone = alone
        self._is_behind = is_behind
        self._clock = clock
        self._link = Link(broker, clock)
        self._copied_s = -COPY_S
        self._is_copied = True
        self._readers = mending.readers
        self._menders: Mapping[int, Mender] = {
            **mending.menders,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster,
        }

    @property
    def is_alone(self) -> bool:
        """Whether the broker is down, and requests are served from the tier."""
        return bool(self.broker.failure)

    @property
    def is_behind(self) -> bool:
        """Whether all clients together leave too many bytes unread."""
        return self._is_behind()

    def call(self, request: Request, client: PassingConnection) -> Outcome:
        """Pass a request on, or answer it while its server is down.

        Raises:
            Refused: the server is down, and the tier has no answer.
        """
        code = request.command.code
        is_named = code in NAME_REQUESTS
        endpoint = self.names if is_named else self.broker
        if endpoint.failure:
            return self._served_alone(request, client, endpoint)
        if not is_named:
            self._note(request, client)
        outcome = client.pass_on(request, endpoint.part)
        self.passed += outcome is None
        return outcome

    def _served_alone(self, request: Request, client: Peer, endpoint: Endpoint) -> Outcome:
        processor = self._alone.get(request.command.code)
        # A route without the broker's other topics would stop their producers.
        if processor is not None and self.is_alone:
            return processor(request, client)
        raise Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"{endpoint.name} is not reachable from this proxy; try again",
        )

    def _note(self, request: Request, client: Peer) -> None:
        """Take the groups of a client, as the broker does, for their subscriptions."""
        command = request.command
        try:
            if command.code == RequestCode.HEART_BEAT:
                self._groups.beat(client, request.document(), command.language, command.version)
            elif command.code == RequestCode.UNREGISTER_CLIENT and request.optional(
                "consumerGroup"
            ):
                self._groups.leave(client, request.text("consumerGroup"))
        except Refused as error:
            LOGGER.debug("a heartbeat of %s is not noted: %s", client.address, error)

    def mend(
        self, request: Request, answer: Command, frame: bytes, client: PassingConnection
    ) -> Outcome:
        """Return the answer to a request that was passed on, or forward its frame."""
        code = request.command.code
        if code in self._readers:
            return self._read(request, answer, frame, client)
        mender = self._menders.get(code)
        outcome = None if mender is None else mender(request, answer, client)
        if outcome is None:
            client.forward(frame)
        return outcome

    async def _read(
        self, request: Request, answer: Command, frame: bytes, client: PassingConnection
    ) -> Answer | None:
        found = await self._readers[request.command.code](request, answer, client)
        if found is None:
            client.forward(frame)
        return found

    async def connect(self, upstream: Upstream) -> bool:
        """Connect to the server of `upstream.part`. Return whether that is done."""
        endpoint = self.broker if upstream.part is Part.BROKER else self.names
        reason = await self._connected(endpoint, lambda: upstream)
        if reason:
            endpoint.failed(reason)
        return not reason

    async def _connected(self, endpoint: Endpoint, made: Callable[[], asyncio.BaseProtocol]) -> str:
        """Connect to the first address that accepts. Return the reason if none does, else ""."""
        reason = ""
        loop = asyncio.get_running_loop()
        for address in list(endpoint.addresses):
            try:
                await within(self._clock, CONNECT_S_MAX, loop.create_connection(made, *address))
            except (OSError, UnicodeError) as error:
                reason = reason_of(error)
            else:
                endpoint.addresses.remove(address)
                endpoint.addresses.insert(0, address)
                return ""
        return reason

    # ---- Routes

    def _route(self, request: Request, answer: Command, peer: Peer) -> Outcome:
        """Name the proxy in place of the broker, and the broker's topic while that is down."""
        topic = request.text("topic")
        data = self._naming.queue_data(topic) if self.is_alone else None
        if answer.code == ResponseCode.TOPIC_NOT_EXIST and data is not None:
            return self._alone[RequestCode.GET_ROUTEINFO_BY_TOPIC](request, peer)
        if answer.code:
            return None
        document = _document(answer)
        brokers = objects_of(document, "brokerDatas")
        if not self._replaced(brokers):
            if data is None:
                return None
            document["brokerDatas"] = [*brokers, self._naming.broker_data()]
            document["queueDatas"] = [*objects_of(document, "queueDatas"), data]
        return answer_of(answer)._replace(body=orjson.dumps(document))

    def _cluster(self, request: Request, answer: Command, peer: Peer) -> Outcome:
        """Name the proxy in place of the broker."""
        del request, peer
        if answer.code:
            return None
        document = _document(answer)
        table = document.get("brokerAddrTable")
        rows = list(cast("dict[str, Any]", table).values()) if isinstance(table, dict) else []
        if not self._replaced(objects_of({"brokers": rows}, "brokers")):
            return None
        return answer_of(answer)._replace(body=orjson.dumps(document))

    def _replaced(self, brokers: Sequence[dict[str, Any]]) -> bool:
        """Replace the broker's addresses by the proxy's. Return whether the broker is among them.

        Its slaves are left out: they have deleted the same messages.
        """
        named = self._identity.cluster, self._identity.broker
        found = [one for one in brokers if (one.get("cluster"), one.get("brokerName")) == named]
        for one in found:
            one["brokerAddrs"] = {MASTER_ID: self._identity.address}
        return bool(found)

    # ---- State of the servers behind

    async def watch(self) -> None:
        """Try the servers that are down, and copy the broker's offsets, until it is cancelled."""
        try:
            while True:
                await self.look()
                await self._clock.sleep(LOOK_S)
        finally:
            self._link.close()

    async def look(self) -> None:
        """Try the servers that are down once, and copy the broker's offsets if it is time."""
        if self.names.failure and self.names.addresses:
            reason = await self._connected(self.names, _Probe)
            self.names.failed(reason) if reason else self.names.succeeded()
        if self.broker.failure:
            await self._ask_broker()
        now_s = self._clock.monotonic_s()
        if not self.broker.failure and now_s - self._copied_s >= COPY_S:
            self._copied_s = now_s
            await self._copy_offsets()

    async def _ask_broker(self) -> None:
        """Ask the broker for its name, which the tier's messages must be of."""
        try:
            answer = await self._link.ask(RequestCode.GET_BROKER_CONFIG)
        except Unreachable as error:
            self.broker.failed(str(error))
            return
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self.broker.failed(answer.remark or "it is not available")
            return
        if answer.code:
            LOGGER.info("%s does not give its name: %s", self.broker.name, answer.remark)
        rows = (line.partition("=") for line in answer.body.decode(errors="replace").splitlines())
        values = {key.strip(): value.strip() for key, _, value in rows}
        wanted = {
            "brokerName": self._identity.broker,
            "brokerClusterName": self._identity.cluster,
        }
        other = {key: values[key] for key in wanted if values.get(key, wanted[key]) != wanted[key]}
        if other:
            self.broker.failed(f"it is another one than that of the tier: {other}")
        else:
            self.broker.succeeded()

    async def _copy_offsets(self) -> None:
        """Copy the broker's offsets of groups, so that they continue there while it is down."""
        try:
            await copy_offsets(self._link, self._offsets)
        except Unreachable as error:
            if self._is_copied:
                LOGGER.warning("the broker's offsets of groups are not copied: %s", error)
            self._is_copied = False
        else:
            self._is_copied = True


class _Probe(asyncio.Protocol):
    """Connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _document(answer: Command) -> dict[str, Any]:
    """Return the body as a JSON object, also that of an old name server with bare numbers.

    Raises:
        Refused: it is none.
    """
    return Request(replace(answer, body=quoted_keys(answer.body))).document()
