"""What `tieredstore doctor` finds out about a place before a tier is trusted to it."""
