"""Options of our own hot log, for writing and for retention."""

import socket
from collections.abc import Mapping
from ipaddress import ip_address

from container.record.header import Host
from tieredstore.config.sources import ConfigError, Setting, build
from tieredstore.following.directory.layout import SEPARATOR
from tieredstore.hot.options import HotWriteOptions, RetentionOptions

ADDRESS, PORT = "brokerIP1", "listenPort"
COMMIT_LOG = "storePathCommitLog"
HOURS_SEPARATOR = ";"


def write_options(settings: Mapping[str, Setting]) -> HotWriteOptions:
    """Return the write options. Blocks if `brokerIP1` is a host name: it is resolved.

    Raises:
        ConfigError: there is no such host, or two settings do not work together.
    """
    return build(
        HotWriteOptions,
        settings,
        store_host=_store_host(settings),
        commit_log_path=_commit_log(settings),
    )


def retention_options(settings: Mapping[str, Setting]) -> RetentionOptions:
    """Return the retention options.

    Raises:
        ConfigError: two settings do not work together.
    """
    hours = str(settings["deleteWhen"].value).split(HOURS_SEPARATOR)
    return build(
        RetentionOptions, settings, delete_hours=frozenset(int(hour) for hour in hours if hour)
    )


def _commit_log(settings: Mapping[str, Setting]) -> str:
    """Return the directory of the CommitLog: a single one, unlike that of a broker."""
    given = settings[COMMIT_LOG]
    if SEPARATOR in str(given.value):
        raise ConfigError(
            f"{COMMIT_LOG} ({given.origin}) names several directories, and our own hot log writes "
            f"to one"
        )
    return str(given.value)


def _store_host(settings: Mapping[str, Setting]) -> Host:
    """Address and port that messages name as their broker's; IPv4 if a name has both."""
    given, port = settings[ADDRESS], int(settings[PORT].value)
    name = str(given.value)
    try:
        return str(ip_address(name)), port
    except ValueError:
        pass
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"{ADDRESS} ({given.origin}) is an IP address or the name of a host, and {name!r} is "
            f"neither"
        ) from error
    first = min(found, key=lambda one: one[0] != socket.AF_INET)
    return str(first[4][0]).partition("%")[0], port
