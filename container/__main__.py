"""`python -m container < container/FORMAT.md`: the document with its tables made anew."""

import sys

from container.format_tables import fill, tables

if __name__ == "__main__":
    sys.stdout.write(fill(sys.stdin.read(), tables()))
