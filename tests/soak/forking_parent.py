"""The parent that `ForkedCommands` starts: it imports tieredstore once and forks every command.

Reads a command's arguments as a line of JSON; answers with the child's process id, then with its
exit status. Run as a file, so that it imports nothing of the tests.
"""

import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _command(arguments: list[str], log: str) -> None:
    """The child's life."""
    from tieredstore.cli.main import cli  # noqa: PLC0415 - only the child and its parent need it

    status = 70
    try:
        _die_with_parent()
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        cli.main(arguments)
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else 1
    finally:
        os._exit(status)


def _serve(log: str) -> None:
    import tieredstore.cli.commands.tier  # noqa: F401, PLC0415 - so that the children have it

    _die_with_parent()
    print("ready", flush=True)
    pid = 0
    for line in iter(sys.stdin.readline, ""):
        if pid:
            os.waitpid(pid, 0)  # only now: until here nobody else could get its id
        pid = os.fork()
        if pid == 0:
            _command(json.loads(line), log)
        print(pid, flush=True)
        ending = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ending is not None
        was_exit = ending.si_code == os.CLD_EXITED
        print(ending.si_status if was_exit else -ending.si_status, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
