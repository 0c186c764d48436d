"""Commands of `tieredstore`: one file each, imported when its command runs.

A module has one `command`, and its line in `COMMANDS` of `tieredstore/cli/main.py`.
"""
