"""The exit statuses of every command, as `--help` and `docs/command-line.md` show them."""

from collections.abc import Mapping

FINDINGS, WRONG_USE, UNAVAILABLE, OWNED, BUG = 1, 2, 3, 4, 70

MEANINGS: Mapping[str, str] = {
    "0": "success",
    "1": "findings, queues that are stopped, messages that were lost in this run, or not found",
    "2": "usage or configuration error",
    "3": "storage or memory unavailable; a later try may succeed",
    "4": "another process owns the tier or the store, or took the tier over",
    "70": "internal error",
    "129, 130, 143": "ended by SIGHUP, SIGINT, SIGTERM (`tier --follow` and `run` end with 0 once"
    " they have committed; a second signal ends them at once)",
}
