"""Checker of a tier: verifies objects, records and metadata, and reports findings. Read-only."""
