"""Server of a tier to RocketMQ clients: listener, background work, and an orderly end."""

import asyncio
import fcntl
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from ssl import SSLContext

from provider.clock import Clock, give_way
from provider.errors import StoreError
from provider.posix.files import posix_errors
from tieredstore.config.sources import ConfigError
from tieredstore.metrics.reads import ReadMeter
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.serve.administering import Administering, Relaying
from tieredstore.serve.broker.mending import Mending
from tieredstore.serve.broker.proxying import Proxy
from tieredstore.serve.broker.slave import Slave
from tieredstore.serve.consuming import TICK_S, Consuming, HeldPull
from tieredstore.serve.grouping import Adjusting, Grouping
from tieredstore.serve.groups import Groups
from tieredstore.serve.history import History
from tieredstore.serve.naming import Identity, Naming
from tieredstore.serve.options import STATE, NewGroups, ServeOptions
from tieredstore.serve.ranges import TierRanges
from tieredstore.serve.wire.connection import TOO_SLOW, Connection
from tieredstore.serve.wire.frame import ONE_WAY, Command, RequestCode, ResponseCode
from tieredstore.serve.wire.passing import PassingConnection
from tieredstore.serve.wire.request import Answer, Outcome, Peer, Processor, Refused, Request
from tieredstore.serve.wire.security import Accounts
from tieredstore.session.consumer_offsets import ConsumerOffsets

LOGGER = logging.getLogger("tieredstore.serve")
CONNECTIONS_MAX = 10_000
UNSENT_BYTES_MAX = 256 << 20
"""Bytes of answers that clients have not read, over all, above which no more are given."""
UNREAD_BYTES_MAX = 256 << 20
"""Bytes of requests that are not complete, over all."""
HANDSHAKE_S_MAX = 10.0
SAVE_S = 5.0
UPKEEP_S = 1.0
WARN_S = 60.0
WOKEN_TOGETHER = 64
"""Pulls that are resumed before other tasks run."""
CODES_MAX = 64
"""Request codes without a processor that are counted by their number."""
OTHER_CODE = "other"
HISTORY_ONLY = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    }
)
"""Requests that would write."""
PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})


class Server:
    """Clients of one tier. Made by `serving`."""

    def __init__(
        self,
        options: ServeOptions,
        history: History,
        offsets: ConsumerOffsets,
        identity: Identity,
        *,
        meter: ReadMeter,
        clock: Clock,
        tasks: asyncio.TaskGroup,
        together: list[Naming],
        accounts: Accounts | None,
    ) -> None:
        self.clock = clock
        self._accounts = accounts
        self.history = history
        self.offsets = offsets
        self.groups = groups = Groups(clock, self._notify)
        self.requests: Counter[tuple[str, str]] = Counter()
        """Answers by request code and response code."""
        self.refused_connections = 0
        self._identity = identity
        self._refresh_s = options.refresh_s
        self._tasks = tasks
        self._connections: dict[Connection, int] = {}
        self._unread = 0
        self._unsent = 0
        self._unknown: set[int] = set()
        self._warned: dict[str, tuple[float, int]] = {}
        self._seen: tuple[int, int] | None = None
        is_proxy = options.broker is not None
        stands_in_as = options.slave_id if is_proxy or options.slave_id else None
        self.naming = naming = Naming(identity, history, groups, offsets, together, writes=is_proxy)
        # Beside a broker, a new group begins as there.
        new_groups = options.new_groups if stands_in_as is None else NewGroups.CLIENT
        grouping = Grouping(
            naming, history, groups, offsets, new_groups=new_groups, broker=identity.broker
        )
        self.consuming = Consuming(
            naming,
            grouping,
            history,
            groups,
            meter=meter,
            clock=clock,
            stands_in_as=stands_in_as,
        )
        administering = Administering(
            naming, history, groups, offsets, broker=identity.broker, clock=clock
        )
        reading = {
            **naming.processors,
            **grouping.processors,
            **self.consuming.processors,
        }
        self._processors: Mapping[int, Processor] = {
            **administering.processors,
            **Adjusting(
                naming, grouping, history, groups, offsets, broker=identity.broker
            ).processors,
            **reading,
            **Relaying(groups, clock).processors,
            **TierRanges(identity, history).processors,
            **dict.fromkeys(HISTORY_ONLY, _refuse_write),
        }
        registration = options.name_servers, options.slave_id, identity, offsets, clock
        self.slave = Slave(*registration) if options.slave_id else None
        self.proxy = self._proxy_of(options, reading) if options.broker is not None else None

    def _proxy_of(self, options: ServeOptions, alone: Mapping[int, Processor]) -> Proxy:
        assert options.broker is not None
        return Proxy(
            options.broker,
            options.name_servers,
            self._identity,
            naming=self.naming,
            groups=self.groups,
            offsets=self.offsets,
            mending=Mending(self._identity, self.history, self.consuming, self.warn),
            alone=alone,
            is_behind=lambda: self._unsent > UNSENT_BYTES_MAX,
            clock=self.clock,
        )

    def __repr__(self) -> str:
        return f"<Server at {self._identity.address}: {len(self._connections)} connections>"

    @property
    def address(self) -> str:
        """Address that routes name."""
        return self._identity.address

    @property
    def connections(self) -> int:
        """Number of clients."""
        return len(self._connections)

    @property
    def unsent(self) -> int:
        """Bytes of answers that clients have not read."""
        return self._unsent

    def unready_reason(self) -> str:
        """Return why clients are not served as they should be, in one line; "" while they are."""
        if self.history.failure is not None:
            return f"the tier's news cannot be read: {self.history.failure}"
        if self.offsets.failure is not None:
            return f"offsets of groups are not saved: {self.offsets.failure}"
        return "" if self.slave is None else self.slave.unready_reason()

    def opened(self, connection: Connection) -> bool:
        """Count a connection. Return False if there are too many."""
        if len(self._connections) >= CONNECTIONS_MAX:
            self.refused_connections += 1
            if self.refused_connections == 1 or not self.refused_connections % 1000:
                LOGGER.warning(
                    "%d connections were refused: %d are open",
                    self.refused_connections, CONNECTIONS_MAX,
                )  # fmt: skip
            return False
        self._connections[connection] = 0
        LOGGER.debug("%s is connected", connection.address)
        return True

    def closed(self, connection: Connection) -> None:
        """Forget a connection, its memberships, and its pulls that wait."""
        if self._connections.pop(connection, None) is not None:
            LOGGER.debug("%s is disconnected", connection.address)
        self.consuming.held.drop(connection)
        self.groups.leave(connection)

    def call(self, request: Request, connection: Connection) -> Outcome:
        """Call the processor of a request. Raises as that, and `Refused`."""
        code = request.command.code
        if self._accounts is not None:
            self._verify(self._accounts, request.command, connection)
        if code in PULLS:
            self._refuse_if_behind()
        if self.proxy is not None and isinstance(connection, PassingConnection):
            return self.proxy.call(request, connection)
        processor = self._processors.get(code)
        if processor is None:
            raise Refused(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported"
            )
        return processor(request, connection)

    def _verify(self, accounts: Accounts, command: Command, connection: Connection) -> None:
        try:
            accounts.verify(command)
        except Refused as error:
            self.warn("accounts", f"{connection.address} is refused: {error}")
            connection.refused()
            raise

    def _refuse_if_behind(self) -> None:
        if self._unsent > UNSENT_BYTES_MAX:
            raise Refused(ResponseCode.SYSTEM_BUSY, TOO_SLOW)

    def failed(self, request: Request, error: Exception) -> Answer:
        """Return the answer for a failure of a processor."""
        if isinstance(error, Refused):
            return Answer(error.code, str(error))
        if isinstance(error, StoreError):
            name = self._code_name(request.command.code)
            self.warn("request", f"a request failed ({name}): {error}")
            return Answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        LOGGER.error("a request of code %d failed", request.command.code, exc_info=error)
        return Answer(ResponseCode.SYSTEM_ERROR, f"a bug of tieredstore's: {type(error).__name__}")

    def warn(self, kind: str, sentence: str) -> None:
        """Log a sentence; of one kind, once a minute, with the number of those in between."""
        now_s = self.clock.monotonic_s()
        last_s, left_out = self._warned.get(kind, (-WARN_S, 0))
        if now_s - last_s < WARN_S:
            self._warned[kind] = last_s, left_out + 1
            return
        self._warned[kind] = now_s, 0
        more = f" ({left_out} more of this kind since the last one)" if left_out else ""
        LOGGER.warning("%s%s", sentence, more)

    def answered(self, request: Request, answer: Answer) -> Answer:
        """Count an answer. Return it; another one if it has a body and clients read too slowly."""
        if len(answer.body) and self._unsent > UNSENT_BYTES_MAX:
            answer = Answer(ResponseCode.SYSTEM_BUSY, TOO_SLOW)
        self.requests[self._code_name(request.command.code), answer.code.name] += 1
        return answer

    def _code_name(self, code: int) -> str:
        if code in self._processors:
            return RequestCode(code).name
        if code not in self._unknown:
            if len(self._unknown) >= CODES_MAX:
                return OTHER_CODE
            self._unknown.add(code)
            LOGGER.info("clients ask for the request code %d, which is not supported", code)
        return str(code)

    def start(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        """Run `work`, which never fails, in a task that the server owns."""
        return self._tasks.create_task(work)

    def held_of(self, connection: Connection) -> int:
        """Return the number of its pulls that wait."""
        return self.consuming.held.count_of(connection)

    def unsent_grew(self, more: int) -> None:
        """Count bytes of answers that clients have not read; negative if they did."""
        self._unsent += more

    def is_full(self, connection: Connection, unread: int) -> bool:
        """Count bytes of frames that are not complete. Return whether all are too many."""
        before = self._connections.get(connection)
        if before is None or before == unread:
            return False
        self._connections[connection] = unread
        self._unread += unread - before
        return unread > before and self._unread > UNREAD_BYTES_MAX

    async def refresh(self) -> None:
        """Follow the tier, until it is cancelled."""
        while True:
            await self.history.refresh()
            if self._seen != self.history.version:
                self._seen = self.history.version
                await self._wake()
            await self.clock.sleep(self._refresh_s)

    async def _wake(self) -> None:
        for queue in self.consuming.held.queues():
            _, end = self.history.bounds(queue)
            await self._resume(self.consuming.held.grown(queue, end))

    async def upkeep(self) -> None:
        """End waits that are over, drop clients, save offsets, until it is cancelled."""
        upkeep_s = saved_s = self.clock.monotonic_s()
        while True:
            await self.clock.sleep(TICK_S)
            now_s = self.clock.monotonic_s()
            await self._resume(self.consuming.held.due(now_s))
            if now_s - upkeep_s >= UPKEEP_S:
                upkeep_s = now_s
                self.groups.upkeep()
                for connection in list(self._connections):
                    connection.upkeep(now_s)
            if now_s - saved_s >= SAVE_S:
                saved_s = now_s
                await self.offsets.keep()

    async def _resume(self, pulls: list[HeldPull]) -> None:
        for number, pull in enumerate(pulls, 1):
            pull.peer.deliver(pull.request, partial(self._resumed, pull))
            if not number % WOKEN_TOGETHER:
                await give_way()

    def _resumed(self, pull: HeldPull) -> Outcome:
        self._refuse_if_behind()
        return pull.resume()

    def _notify(self, peer: Peer, group: str) -> None:
        """Notify a client of a change of its group, so that it rebalances at once."""
        if self.proxy is None or self.proxy.is_alone:
            code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            peer.send(Command(code, {"consumerGroup": group}, flag=ONE_WAY))

    def accepted(self) -> Connection:
        """Return the protocol of a new client."""
        return Connection(self) if self.proxy is None else PassingConnection(self, self.proxy)

    def end(self) -> None:
        """Answer the pulls that wait, and close every connection after what is written to it."""
        self.consuming.stop()
        for pull in self.consuming.held.all():
            pull.peer.deliver(pull.request, pull.resume)
        for connection in list(self._connections):
            connection.close()


def _refuse_write(request: Request, peer: Peer) -> Answer:
    del request, peer
    raise Refused(ResponseCode.NO_PERMISSION, "this server has the history of a tier, read-only")


def _security_of(options: ServeOptions) -> tuple[Accounts | None, SSLContext | None]:
    path, tls = options.accounts_path, options.tls
    return path and Accounts.read(path), tls and tls.context()


async def _listening(
    options: ServeOptions, tls: SSLContext | None, connection: Callable[[], Connection]
) -> asyncio.Server:
    """Bind the address, where no client is accepted yet.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    try:
        return await asyncio.get_running_loop().create_server(
            connection,
            options.host,
            options.port,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else HANDSHAKE_S_MAX,
            start_serving=False,
        )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"clients cannot be served at {options.host} port {options.port} "
            f"(tieredStoreServeHost, tieredStoreServePort): {reason}"
        ) from error


def _locked(path: Path) -> int:
    """Lock the file of offsets for this server. Return what `os.close` unlocks. Blocks.

    Raises:
        ConfigError: another server has it.
        Unavailable, Denied: the storage fails.
    """
    lock = path.with_name(f"{path.name}.lock")
    with posix_errors(str(lock)):
        lock.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise ConfigError(
            f"another server saves the offsets of groups in {path}: give this one a directory of "
            f"its own by {STATE}"
        ) from error
    except OSError as error:
        LOGGER.info("%s cannot be locked: %s", lock, error)
    return fd


@asynccontextmanager
async def serving(
    options: ServeOptions,
    tier: ReadableTier,
    meter: ReadMeter,
    clock: Clock,
    together: list[Naming] | None = None,
) -> AsyncGenerator[Server]:
    """Serve an open tier while the block runs.

    `together` has the servers of other brokers of a cluster, which name each other in routes.

    Raises:
        ConfigError: the address cannot be listened at, another server has the file of offsets, or
            that of offsets, of accounts or of TLS is damaged.
        Unavailable, Denied: the offsets cannot be read, or saved at the end.
    """
    lock = await asyncio.to_thread(_locked, options.offsets_path)
    try:
        async with _serving(options, tier, meter, clock, together) as server:
            yield server
    finally:
        os.close(lock)


@asynccontextmanager
async def _serving(
    options: ServeOptions,
    tier: ReadableTier,
    meter: ReadMeter,
    clock: Clock,
    together: list[Naming] | None,
) -> AsyncGenerator[Server]:
    offsets = await asyncio.to_thread(ConsumerOffsets.load, options.offsets_path, options.seed_path)
    accounts, tls = await asyncio.to_thread(_security_of, options)
    servers: list[Server] = []
    listener = await _listening(options, tls, lambda: servers[0].accepted())  # noqa: PLW0108 - it is made later
    port = listener.sockets[0].getsockname()[1]
    identity = Identity(tier.cluster, tier.broker, options.address or f"{options.host}:{port}")
    history = History(tier, clock)
    block_failed: Exception | None = None
    together = [] if together is None else together
    try:
        async with asyncio.TaskGroup() as tasks:
            server = Server(
                options,
                history,
                offsets,
                identity,
                meter=meter,
                clock=clock,
                tasks=tasks,
                together=together,
                accounts=accounts,
            )
            servers.append(server)
            together.append(server.naming)
            works = [server.refresh, server.upkeep]
            if server.proxy is not None:
                await server.proxy.look()
                works.append(server.proxy.watch)
            if server.slave is not None:
                works.append(server.slave.run)
            workers = [tasks.create_task(one()) for one in works]
            try:
                await listener.start_serving()
                LOGGER.info(
                    "%s of cluster %s is served at %s: %d topics of %s",
                    tier.broker, tier.cluster, server.address, len(history.topics()),
                    tier.location,
                )  # fmt: skip
                yield server
            except Exception as error:  # noqa: BLE001 - raised again below, outside the group
                block_failed = error
            finally:
                listener.close()
                together.remove(server.naming)
                server.end()
                for worker in workers:
                    worker.cancel()
    finally:
        listener.close()
        await offsets.keep()
    if block_failed is not None or offsets.failure is not None:
        raise block_failed or offsets.failure  # type: ignore[misc]
