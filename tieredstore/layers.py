"""The four packages below `tieredstore`, which must be its own (decision 0001).

They carry plain names that other distributions and users' scripts have too, and an import that
finds the wrong one fails far from its cause. So they are first looked up, not imported: foreign
code does not run, and the lookup takes 0.1 ms.
"""

import os
import sys
from importlib.util import find_spec

LAYERS = ("container", "dispatcher", "fetcher", "provider")
WRONG_USE = 2
"""As in `cli/streams.py`, which is imported after the layers."""


def refuse_intruders(home: str) -> None:
    """Refuse layers outside `home`.

    Raises:
        ImportError: a layer is another distribution's, a file of the user's, or not there.
        SystemExit: likewise, if the running command is `tieredstore`; the reason was printed.
    """
    for layer in LAYERS:
        sentence = _intruder(layer, home)
        if not sentence:
            continue
        if _is_command():
            print(f"tieredstore: {sentence}", file=sys.stderr)  # noqa: T201 - click comes later
            raise SystemExit(WRONG_USE)
        raise ImportError(sentence, name=layer)


def _intruder(layer: str, home: str) -> str:
    """Why that layer is not ours; "" if it is."""
    try:
        spec = find_spec(layer)
    except ValueError:  # a module without a spec, made by hand
        spec = None
    found = spec.origin if spec is not None else None
    if found is not None and os.path.dirname(os.path.dirname(found)) == home:  # noqa: PTH120 - see below
        return ""
    # pathlib would double the time until Ctrl-C is heard.
    if found is None:
        return f"its package {layer!r} is not in {home}: install tieredstore again"
    return (
        f"{found} has the name of tieredstore's own package {layer!r}: rename that file, or take "
        f"its directory from the import path (a script's own directory, or PYTHONPATH)"
    )


def _is_command() -> bool:
    """Whether this process is the command line, and no program that imports the package."""
    first = (getattr(sys, "argv", None) or [""])[0]  # an embedded Python may have none
    if first == "-m":  # while Python searches the module to run
        return "tieredstore" in sys.orig_argv
    return os.path.basename(first) == "tieredstore"  # noqa: PTH119 - as above
