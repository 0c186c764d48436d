"""Scans of a tier by many workers: planning, splits, byte sources, records in order.

Begin with `planning.py` (driver) and `log_scan.py` (worker).
"""
