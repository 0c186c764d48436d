"""One queue over many segments: plan a write, read a range, cut a tail."""
