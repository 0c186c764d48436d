"""`python -m tieredstore`, and the entry point of the distribution."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C while its modules are loaded ends it without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tieredstore.cli.main import main as run  # noqa: PLC0415 - what is slow

    signal.signal(signal.SIGINT, handler)
    run()


if __name__ == "__main__":
    main()
