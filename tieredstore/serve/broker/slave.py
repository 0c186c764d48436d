"""Registration with name servers as a slave of the tier's broker, so that consumers read here."""

import logging
from collections.abc import Sequence

import orjson

from provider.clock import Clock
from provider.errors import Corrupt
from tieredstore.serve.naming import Identity
from tieredstore.serve.wire.frame import RequestCode
from tieredstore.serve.wire.link import Address, Link, Unreachable
from tieredstore.session.consumer_offsets import ConsumerOffsets, quoted_keys

LOGGER = logging.getLogger("tieredstore.serve")
REGISTER_S = 10.0
"""Seconds between two heartbeats to each name server, and between two copies of offsets."""


class Slave:
    """Registration under the broker's name, with a broker id of its own."""

    def __init__(
        self,
        names: Sequence[Address],
        broker_id: int,
        identity: Identity,
        offsets: ConsumerOffsets,
        clock: Clock,
    ) -> None:
        self._names = [Link(address, clock) for address in names]
        self._broker_id = str(broker_id)
        self._identity = identity
        self._offsets = offsets
        self._clock = clock
        self._master: Link | None = None
        self._failures: dict[Link, str] = dict.fromkeys(self._names, "it has not answered yet")
        self._copy_failure = ""

    def __repr__(self) -> str:
        return f"<Slave {self._broker_id} of {self._identity.broker}>"

    @property
    def registered(self) -> int:
        """Number of name servers that have the registration."""
        return sum(not failure for failure in self._failures.values())

    def unready_reason(self) -> str:
        """Return why consumers cannot find this server, in one line; "" if they can."""
        if self.registered:
            return ""
        reasons = "; ".join(f"{link.address}: {why}" for link, why in self._failures.items())
        return f"no name server has this server as a slave: {reasons}"

    async def run(self) -> None:
        """Register again and again, and copy the master's offsets, until it is cancelled."""
        try:
            while True:
                await self.beat()
                await self._clock.sleep(REGISTER_S)
        finally:
            await self._leave()

    async def beat(self) -> None:
        """Register with each name server, and copy the master's offsets of groups."""
        for link in self._names:
            try:
                master = await self._register(link)
            except Unreachable as error:
                self._note(link, str(error))
            else:
                self._note(link, "")
                self._follow(master)
        if self._master is None:
            return
        try:
            await copy_offsets(self._master, self._offsets)
        except Unreachable as error:
            if not self._copy_failure:
                LOGGER.warning("the master's offsets of groups are not copied: %s", error)
            self._copy_failure = str(error)
        else:
            self._copy_failure = ""

    def _note(self, link: Link, failure: str) -> None:
        known = self._failures[link]
        if failure and failure != known:
            LOGGER.warning("a name server does not have this server as a slave: %s", failure)
        if known and not failure:
            LOGGER.info(
                "%s has this server as slave %s of %s",
                link.address, self._broker_id, self._identity.broker,
            )  # fmt: skip
        self._failures[link] = failure

    def _follow(self, master: str) -> None:
        """Keep a connection to the present master; none while there is none."""
        if self._master is not None and str(self._master.address) != master:
            self._master.close()
            self._master = None
        if master and self._master is None:
            try:
                self._master = Link(Address.parse(master), self._clock)
            except ValueError as error:
                LOGGER.warning("the name server names a master that is no address: %s", error)

    async def _register(self, link: Link) -> str:
        """Register. Return the master's address; "" if there is none.

        The table of topics is empty: a name server takes them from a master, and refuses the first
        registration with exactly one.

        Raises:
            Unreachable: the name server does not answer, or the broker id is another server's.
        """
        if not link.is_open:
            await self._refuse_taken(link)
        topics: dict[str, object] = {
            "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": self._clock.now_ms()},
            "topicConfigTable": {},
        }
        body: dict[str, object] = {"filterServerList": [], "topicConfigSerializeWrapper": topics}
        answer = await link.ask(
            RequestCode.REGISTER_BROKER,
            orjson.dumps(body),
            self._named()
            | {"haServerAddr": self._identity.address, "compressed": "false", "bodyCrc32": "0"},
        )
        if answer.code:
            raise Unreachable(f"{link.address}: {answer.remark or answer.code}")
        return answer.fields.get("masterAddr", "")

    def _named(self) -> dict[str, str]:
        return {
            "brokerName": self._identity.broker,
            "brokerAddr": self._identity.address,
            "clusterName": self._identity.cluster,
            "brokerId": self._broker_id,
        }

    async def _refuse_taken(self, link: Link) -> None:
        """Refuse a broker id under which another server is registered, which would be replaced.

        Raises:
            Unreachable: there is one, or the name server does not answer.
        """
        answer = await link.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
        try:
            document = orjson.loads(quoted_keys(answer.body))
            addresses = document["brokerAddrTable"][self._identity.broker]["brokerAddrs"]
            other = addresses.get(self._broker_id, self._identity.address)
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        if other != self._identity.address:
            link.close()
            raise Unreachable(
                f"{link.address}: {other} is slave {self._broker_id} of {self._identity.broker} "
                f"already: choose another tieredStoreServeSlaveId"
            )

    async def _leave(self) -> None:
        """Have the name servers forget the registration."""
        for link in self._names:
            if not self._failures[link]:
                try:
                    await link.ask(RequestCode.UNREGISTER_BROKER, fields=self._named())
                except Unreachable as error:
                    LOGGER.info("a name server is not told of the end: %s", error)
            link.close()
        if self._master is not None:
            self._master.close()


async def copy_offsets(link: Link, offsets: ConsumerOffsets) -> None:
    """Replace offsets of groups by those of a broker.

    Raises:
        Unreachable: it does not give them.
    """
    answer = await link.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    if answer.code:
        raise Unreachable(f"{link.address}: {answer.remark}")
    try:
        await offsets.take(answer.body, str(link.address))
    except Corrupt as error:
        raise Unreachable(str(error)) from error
