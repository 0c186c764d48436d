"""`python -m tieredstore`, and the entry point of the distribution."""

from tieredstore.interrupt import ctrl_c_ends_at_once, let_ctrl_c_end


def main() -> None:
    """Run the command line. Ctrl-C while its modules are loaded ends it without a traceback."""
    with ctrl_c_ends_at_once():
        from tieredstore.cli.main import main as run  # noqa: PLC0415 - what is slow
    try:
        run()
    finally:
        let_ctrl_c_end()  # it would interrupt the interpreter's own end, with a traceback


if __name__ == "__main__":
    main()
