"""Background steps of an owner: snapshots, deletions, garbage, merges, offload, retention."""
