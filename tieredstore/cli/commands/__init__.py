"""Work of the commands: one file each, imported when its command runs.

A module has the function `run`. Its parameters are the options that `syntax/` gives the command.
"""
