"""`python -m container < container/FORMAT.md` prints the document with renewed tables."""

import sys

from container.format_tables import fill, tables

if __name__ == "__main__":
    sys.stdout.write(fill(sys.stdin.read(), tables()))
