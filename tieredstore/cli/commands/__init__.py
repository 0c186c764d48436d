"""Work of the commands, imported when one of them runs.

The parameters of its function are the options that `syntax/` gives the command. Commands that
import the same share a file.
"""
