"""The command line: options and help of all commands in one room, their work in another."""
