"""Queues over many segments: plan a write, read a range, truncate head or tail."""
