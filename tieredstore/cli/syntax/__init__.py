"""Names, options and help of the commands, by subject.

Imports click alone, so that `COMMAND --help` answers at once. `done_by` names a command's work in
`commands/`, and a type imports what converts a value when there is one.
"""
