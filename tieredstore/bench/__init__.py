"""What `tieredstore bench` measures: this machine's raw limits, and our figures beside them."""
