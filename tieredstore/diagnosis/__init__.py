"""Checks of `tieredstore doctor` on a place before it holds a tier."""
