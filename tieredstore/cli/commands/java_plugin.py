"""`tieredstore java-plugin`: the plug-in for Java brokers as a file, and its settings."""

from importlib.resources import files
from pathlib import Path

import click

from tieredstore.cli.invocation import Invocation
from tieredstore.config.keys import BROKER_PLUG_IN

JAR = "tieredstore-rocketmq-plugin.jar"
PACKAGED = f"java_plugin/{JAR}"
SERVE_PORT = 10970
"""Port of the server in the plug-in's default."""


def run(_: Invocation, directory: Path) -> int:
    """Write the plug-in for a Java broker into DIRECTORY, such as the broker's own lib."""
    try:
        jar = files("tieredstore").joinpath(PACKAGED).read_bytes()
    except FileNotFoundError:
        raise click.UsageError(
            "this installation lacks the plug-in, for its wheel was built without Maven: run "
            "`make plugin-jar` in a checkout, and install that"
        ) from None
    directory.mkdir(parents=True, exist_ok=True)
    (directory / JAR).write_bytes(jar)
    click.echo(f"messageStorePlugIn={BROKER_PLUG_IN}")
    click.echo(f"tieredStoreServeAddress=127.0.0.1:{SERVE_PORT}")
    click.echo(f"tieredStoreServePort={SERVE_PORT}")
    return 0
