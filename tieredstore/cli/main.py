"""The command `tieredstore`: its options, its commands by name, and how it ends.

Imports click only, so that `--help` is there at once; what a command does is imported when it runs.
"""

import os
import resource
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress

import click

from tieredstore import __version__
from tieredstore.cli.invocation import Invocation, accept_after_name, global_options
from tieredstore.cli.streams import MEANINGS, flush_errors, give_up_output, named_output
from tieredstore.interrupt import ctrl_c_ends_at_once, imported

READING = "tieredstore.cli.syntax.reading"
REPAIRING = "tieredstore.cli.syntax.repairing"
REWRITING = "tieredstore.cli.syntax.rewriting"
SERVING = "tieredstore.cli.syntax.serving"
SETTINGS = "tieredstore.cli.syntax.settings"
VERIFYING = "tieredstore.cli.syntax.verifying"
WRITING = "tieredstore.cli.syntax.writing"

COMMANDS: Mapping[str, tuple[str, str]] = {
    "tier": (WRITING, "Copy a RocketMQ store into a tier, once or continuously."),
    "run": (WRITING, "Run the configured store of our own with its tier."),
    "put": (WRITING, "Append messages to a store of our own."),
    "topics": (READING, "List the queues of a tier with offsets, sizes and times."),
    "brokers": (READING, "List the clusters and brokers of a tier."),
    "status": (READING, "Show the owner of a tier, what it holds, and what was lost."),
    "segments": (READING, "List the segment files of a tier's queues."),
    "read": (READING, "Read messages of a topic by queue, offset, time and tag."),
    "offset-by-time": (READING, "Print the queue offset of a time."),
    "query": (READING, "Find messages of a topic by one of their keys."),
    "serve": (SERVING, "Serve the history of a tier to RocketMQ clients."),
    "console": (SERVING, "Serve web pages of a tier: brokers, topics, messages."),
    "java-plugin": (SERVING, "Write the plug-in by which a Java broker reads its tier."),
    "check": (VERIFYING, "Verify a tier: metadata and bytes, in both directions."),
    "audit": (VERIFYING, "Verify a whole tier by many processes at once."),
    "rebuild": (REWRITING, "Recreate lost ConsumeQueues, index files and metadata."),
    "restore": (REWRITING, "Write a broker's store directory from its tier."),
    "compact": (REWRITING, "Merge small objects and index files into large ones."),
    "export": (REWRITING, "Write messages as Parquet files, by topic and day."),
    "scrub": (VERIFYING, "Verify a tier in parts, and find unreferenced files."),
    "metadata": (REPAIRING, "Exchange metadata with RocketMQ's own tiered store."),
    "delete-topic": (WRITING, "Delete topics from a store of our own, a tier, or both."),
    "set-retention": (WRITING, "Set the retention of a topic of a store of our own."),
    "offload": (REWRITING, "Move a topic's closed segments to the second store."),
    "repair": (REPAIRING, "Truncate a stopped queue to the messages of its broker."),
    "rewrap-keys": (REPAIRING, "Wrap an encrypted tier's data keys under a new master key."),
    "config": (SETTINGS, "Print every effective setting with its origin and meaning."),
    "doctor": (VERIFYING, "Report whether a place can keep a tier, and what to change."),
    "bench": (SETTINGS, "Measure tiering and reading beside the machine's limits."),
}
"""Module and one line of help of every command."""

FORMS: Mapping[tuple[str, str], str] = {
    ("repair", "--journal-to"): "repair-journal",
    ("repair", "--hot-log"): "repair-hot-log",
}
"""A command's other form beside it, by the option that asks for it."""


class CommandLine(click.Group):
    """A group that imports a command when it is used, and ends with our statuses."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        """All names, in the order in which a new user needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        """Import a command."""
        if cmd_name not in COMMANDS:
            return None
        return _loaded(COMMANDS[cmd_name][0], cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command where there is none of that name."""
        name = args[0]
        for word in args[1:]:
            form = FORMS.get((name, word.partition("=")[0]))
            if form is not None:
                return name, _loaded(COMMANDS[name][0], form), args[1:]
        if name not in COMMANDS and not name.startswith("-"):
            from difflib import get_close_matches  # noqa: PLC0415 - only for a wrong word

            near = get_close_matches(name, COMMANDS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command {name}: {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """List the exit statuses of every command."""
        with formatter.section("Exit status"):
            formatter.write_dl(list(MEANINGS.items()))

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; the reader of the output may close it early, as `head` does."""
        status: object = 0
        try:
            status = super().invoke(ctx)
            if "tieredstore.partial" in ctx.meta:
                status = status or 1
            sys.stdout.flush()
        except BrokenPipeError:
            give_up_output()
        except KeyboardInterrupt:
            from tieredstore.cli.signals import Signalled  # noqa: PLC0415 - only if it is needed

            if sys.stderr.isatty():  # the sentence comes after the terminal's own `^C`
                _say("")
            raise Signalled(signal.SIGINT) from None
        return status

    def main(  # pyright: ignore[reportIncompatibleMethodOverride] - we always end the process
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        **_others: object,
    ) -> None:
        """Run, print an error as one sentence, and exit with its status."""
        words = list(sys.argv[1:] if args is None else args)
        try:
            status = super().main(words, prog_name or "tieredstore", standalone_mode=False)
        except click.exceptions.NoArgsIsHelpError as error:
            status = error.exit_code
            _say(error.format_message())
        except BaseException as error:  # noqa: BLE001 - every end is one sentence
            with ctrl_c_ends_at_once():
                status = _end(error, words)
        sys.exit(status if isinstance(status, int) else 0)


@global_options
@click.group(
    cls=CommandLine,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="tieredstore")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Unlimited history for RocketMQ on cheap storage.

    A tier is a directory, or a place in an object store, that holds the messages of one or more
    brokers. Name it with --tier PLACE or in the configuration file. `tier` fills it; `topics`,
    `brokers`, `segments`, `read`, `offset-by-time`, `query` and `check` need the tier alone. The
    broker needs no name where the tier has only one. The options below may also follow the command.
    """
    ctx.ensure_object(Invocation)


def main() -> None:
    """The entry point of the distribution."""
    _open_closed_streams()
    sys.stdout = named_output(sys.stdout)
    _allow_open_files()
    # numpy's linear algebra, which nothing here uses, starts a thread for each core when it is
    # loaded, and ends the process by SIGINT where the system starts none (`ulimit -u`).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        cli.main()
    finally:
        flush_errors()


def _loaded(module: str, name: str) -> click.Command:
    """The command of that name in a module, which is imported."""
    return accept_after_name(getattr(imported(module), name.replace("-", "_")))


def _end(error: BaseException, words: Sequence[str]) -> int:
    """Print the reason for the end of a command, and return its exit status."""
    from tieredstore.cli.failures import explain  # noqa: PLC0415 - only for a failure

    status, sentence = explain(error)
    if "--debug" in words:
        _say("".join(traceback.format_exception(error)))
    if sentence:
        from tieredstore.cli.logs import format_in, say_end  # noqa: PLC0415 - likewise

        say_end(format_in(words), sentence, status)
    try:
        sys.stdout.flush()
    except OSError:
        give_up_output()
    return status


def _say(text: str) -> None:
    """Print on standard error; a closed one is ignored, because the exit status is enough."""
    with suppress(OSError):
        click.echo(text, err=True)


def _open_closed_streams() -> None:
    """Open the null device in place of standard streams that the caller closed.

    Otherwise the next file that is opened would get their number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, number, inheritable=True)
            if null != number:
                os.close(null)
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _allow_open_files() -> None:
    """Raise the limit of open files to the hard limit: 1,024 is too few for a thousand queues."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # some systems allow fewer than the limit they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


if __name__ == "__main__":
    main()
