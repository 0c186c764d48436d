"""Options of the server, from the configuration."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Self, TypedDict

from provider.names import is_loopback, is_there
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.serve.wire.link import PORT_MAX, Address
from tieredstore.serve.wire.security import Tls
from tieredstore.session.consumer_offsets import NAME
from tieredstore.session.identity import state_directory
from tieredstore.session.places import directory_of

NAME_SERVER_PORT = 9876
"""Port of RocketMQ's name server."""
DIGITS = 16
EVERYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - these are refused
PORT, HOST, INSECURE, STATE = (
    "tieredStoreServePort",
    "tieredStoreServeHost",
    "tieredStoreServeInsecure",
    "tieredStoreServeStatePath",
)
FRONT, SLAVE, NAMES = "tieredStoreServeInFrontOf", "tieredStoreServeSlaveId", "namesrvAddr"
ACCOUNTS, CERTIFICATES, KEY, AUTHORITIES = (
    "tieredStoreServeAccountsPath",
    "tieredStoreServeTlsCertPath",
    "tieredStoreServeTlsKeyPath",
    "tieredStoreServeTlsTrustCertPath",
)


class NewGroups(Enum):
    """First offset of a group that has none."""

    FIRST = "FIRST"
    """The first message of the tier."""
    CLIENT = "CLIENT"
    """As the client is configured (`consumeFromWhere`), whose default is the end."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of the server."""

    host: str
    port: int
    address: str
    """Address and port that routes name; "" for that of the listener."""
    offsets_path: Path
    seed_path: Path | None
    """The followed broker's own `consumerOffset.json`."""
    new_groups: NewGroups
    refresh_s: float
    accounts_path: Path | None = None
    """Accounts that sign requests; None: every request is served."""
    tls: Tls | None = None
    broker: Address | None = None
    """Broker that requests pass to; None: the tier alone is served."""
    name_servers: tuple[Address, ...] = ()
    slave_id: int = 0
    """Broker id of a registration as a slave; 0: none."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Build the options for the broker of a configuration, which was found in the tier.

        Raises:
            ConfigError: every client of the network would be served, no directory is known for the
                offsets, or a proxy or a slave is configured in part.
        """
        values = {name: setting.value for name, setting in config.settings.items()}
        host = str(values[HOST])
        accounts, tls = _path(values[ACCOUNTS]), _tls_of(values)
        is_guarded = accounts is not None or (
            tls is not None and tls.client_authorities is not None
        )
        if not (values[INSECURE] or is_guarded or is_loopback(host)):
            raise ConfigError(
                f"{HOST} ({host}) is no loopback address, and every client that reaches it could "
                f"read all messages: set {ACCOUNTS}, or set {INSECURE}=true if only trusted "
                f"clients do"
            )
        address = str(values["tieredStoreServeAddress"])
        if not address and host in EVERYWHERE:
            raise ConfigError(
                f"{HOST} ({host}) is no address that clients can connect to: set "
                f"tieredStoreServeAddress to the one that they connect to, such as 10.0.0.7:9876"
            )
        seed = config.store_dir / "config" / NAME if config.gives("storePathRootDir") else None
        path = _state_path(config) / NAME
        # The broker may have been served together with others before.
        if config.gives(STATE) and not is_there(path) and is_there(_own_path(path, config)):
            path = _own_path(path, config)
        return cls(
            host=host,
            port=int(values[PORT]) or NAME_SERVER_PORT,
            address=address,
            offsets_path=path,
            seed_path=seed,
            new_groups=NewGroups(str(values["tieredStoreServeNewGroups"])),
            refresh_s=int(values["tieredStoreServeRefreshInterval"]) / 1000,
            accounts_path=accounts,
            tls=tls,
            **_beside_broker(values),
        )

    @classmethod
    def of_brokers(cls, configs: Sequence[Config]) -> list[Self]:
        """Build the options for brokers that are served together, at a port after the other.

        Raises:
            ConfigError: as `of`, or the offsets of one broker alone are in the common directory.
        """
        if len(configs) == 1:
            return [cls.of(configs[0])]
        if any(config.settings[FRONT].value for config in configs):
            raise ConfigError(f"{FRONT} names one broker, and several are to be served")
        return [cls.of(config).numbered(n, config) for n, config in enumerate(configs)]

    def numbered(self, number: int, config: Config) -> Self:
        """Return the options of the broker with this number, counted from 0.

        Raises:
            ConfigError: as `of_brokers`.
        """
        path = _state_path(config) / NAME
        if config.gives(STATE):
            if is_there(path):
                raise ConfigError(
                    f"{path} has the offsets of one broker, and several are to be served: move it "
                    f"into the directory of its broker, such as {path.parent / config.broker}"
                )
            path = _own_path(path, config)
        host, _, port = self.address.rpartition(":")
        if self.address and not port.isdecimal():
            raise ConfigError(f"tieredStoreServeAddress ({self.address}) names no port")
        address = f"{host}:{_plus(port, number)}" if self.address else ""
        # The store of the configuration is that of one broker, and its offsets are of no other.
        return replace(
            self,
            port=_plus(self.port, number),
            address=address,
            offsets_path=path,
            seed_path=None,
        )


class _BesideBroker(TypedDict):
    broker: Address | None
    name_servers: tuple[Address, ...]
    slave_id: int


def _beside_broker(values: Mapping[str, object]) -> _BesideBroker:
    front, slave_id = _addresses(values, FRONT), int(str(values[SLAVE]))
    names = _addresses(values, NAMES) if front or slave_id else ()
    if len(front) > 1:
        raise ConfigError(f"{FRONT} names one broker")
    if front and slave_id:
        raise ConfigError(f"a server is a proxy ({FRONT}) or a slave ({SLAVE}), not both")
    if slave_id and not names:
        raise ConfigError(f"a slave ({SLAVE}) registers with name servers: set {NAMES}")
    return {"broker": front[0] if front else None, "name_servers": names, "slave_id": slave_id}


def _addresses(values: Mapping[str, object], key: str) -> tuple[Address, ...]:
    texts = [one.strip() for one in str(values[key]).split(";")]
    try:
        return tuple(Address.parse(one) for one in texts if one)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error


def _plus(port: str | int, number: int) -> int:
    """Return the port of the broker with this number.

    Raises:
        ConfigError: it is beyond the last port.
    """
    found = (int(port) if len(str(port)) <= len(str(PORT_MAX)) else PORT_MAX) + number
    if found > PORT_MAX:
        raise ConfigError(
            f"the port {port} and {number} more is beyond {PORT_MAX}: set a lower one"
        )
    return found


def _path(value: object) -> Path | None:
    return Path(str(value)) if value else None


def _tls_of(values: Mapping[str, object]) -> Tls | None:
    certificates, key, authorities = (
        _path(values[one]) for one in (CERTIFICATES, KEY, AUTHORITIES)
    )
    if certificates is None and key is None and authorities is None:
        return None
    if certificates is None or key is None:
        raise ConfigError(f"TLS needs both {CERTIFICATES} and {KEY}")
    return Tls(certificates, key, authorities)


def _state_path(config: Config) -> Path:
    given = str(config.settings[STATE].value)
    if given:
        return Path(given)
    directory = state_directory(config)
    if directory is None:
        raise ConfigError(f"this user has no home directory: set {STATE}")
    place = hashlib.sha256(str(directory_of(config)).encode()).hexdigest()[:DIGITS]
    return directory / f"serve-{place}"


def _own_path(path: Path, config: Config) -> Path:
    return path.parent / config.broker / NAME
