"""What an owner does in the background: snapshots, deletions and orphaned files."""
