"""Journal of metadata changes: durable, in order, written by one owner at a time."""
