"""A tier as RocketMQ's own store leaves it: a tree, and the metadata file beside it."""

import shutil
from pathlib import Path

from click.testing import CliRunner

from tieredstore.cli.main import cli


def java_tier(tier: Path, store: Path, metadata: Path, *settings: str) -> Path:
    """Make a tier of `store`, and of it what the Java store leaves; returns the broker's directory.

    The commands run in this process. `settings` are further `key=value` of the configuration.
    """
    values = ("brokerClusterName=c", "brokerName=b", f"tieredStoreFilePath={tier}", *settings)
    options = [word for value in values for word in ("-D", value)]
    for words in (["tier", str(store)], ["metadata", "export", str(metadata)]):
        result = CliRunner().invoke(cli, [*options, *words])
        assert result.exit_code == 0, result.output
    (directory,) = tier.glob("*/b")
    for ours in directory.glob("@*"):
        if ours.is_dir():
            shutil.rmtree(ours)
        else:
            ours.unlink()
    return directory
