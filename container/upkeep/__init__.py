"""What an owner does in the background, each thing a step: snapshots, deletions, orphans."""
