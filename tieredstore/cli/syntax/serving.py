"""Commands that serve a tier to clients, browsers and brokers."""

from pathlib import Path

import click

from tieredstore.cli.invocation import done_by
from tieredstore.cli.syntax.arguments import GivenPath


@click.command("serve")
@click.argument("place", type=GivenPath(), required=False)
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="PATTERN",
    help="Serve this broker, or all that fit, as '*', as one cluster; repeatable.",
)
@click.option(
    "--in-front-of",
    metavar="HOST:PORT",
    help="Pass requests to this running broker; its deleted messages come from the tier.",
)
@click.option(
    "--slave-id",
    type=click.IntRange(min=1),
    metavar="ID",
    help="Register with the name servers as slave ID of the broker (1 for most groups).",
)
@done_by("tieredstore.cli.commands.serve")
def serve() -> None:
    """Serve the messages of the tier in PLACE to RocketMQ clients, until a signal.

    PLACE is a directory or a URL; without it, that of --tier or of the configuration. Unmodified
    consumers that have this address as their name server read the whole history of a broker, also
    while that is down or gone. The tier is only read, and may be written meanwhile by `tier
    --follow`: what is published can be consumed within a second (tieredStoreServeRefreshInterval;
    ten seconds where the tier is in an object store).

    Several brokers (--broker) are one cluster to clients. In the order of their names, each has a
    port: tieredStoreServePort, the next one, and so on. Each of them is a name server for all.

    With --in-front-of (tieredStoreServeInFrontOf) it is a proxy: clients that have it as their name
    server send to the broker through it, and read deleted and newest messages as one queue. With
    --slave-id (tieredStoreServeSlaveId) consumers that the broker sends to a slave, and those of a
    broker that is down, read the tier. Both need namesrvAddr.

    The offsets of consumer groups are kept in tieredStoreServeStatePath, in RocketMQ's own
    consumerOffset.json. A group without one begins at the first message. Producers are refused.
    With tieredStoreConsolePort it has the pages of `tieredstore console`.

    \b
    Exit status, besides those of `tieredstore --help`:
      0  a signal ended it
      3  the tier could not be read at the start, or offsets not be saved at the end
    """  # noqa: D301 - \b is click's mark of lines that stay


@click.command("console")
@click.argument("place", type=GivenPath(), required=False)
@done_by("tieredstore.cli.commands.serve", "run_console")
def console() -> None:
    """Serve web pages of the tier in PLACE until a signal: brokers, topics, queues, messages.

    PLACE is a directory or a URL; without it, that of --tier or of the configuration. All brokers
    of the tier are shown, or the one that the configuration names. The tier is only read, and may
    be written meanwhile.

    The pages are at http://127.0.0.1:8077/ (tieredStoreConsoleHost, tieredStoreConsolePort). Every
    user of this host can read all messages there, unless tieredStoreConsoleTokenPath names a file
    with a token, which any other address needs.
    """


@click.command("java-plugin")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@done_by("tieredstore.cli.commands.config", "java_plugin")
def java_plugin() -> None:
    """Write the plug-in for a Java broker into DIRECTORY, such as the broker's own lib.

    Prints the lines for broker.conf. With them a broker reads what it has deleted from its tier,
    by way of the server of `tier --follow` or `tieredstore serve` at tieredStoreServeAddress.
    """
