"""Opening of a tier, for reading or writing: location, stores, identity, ownership, report.

`reader` opens what only reads, `owner` what writes; `takeover` decides whether a start may have
the tier. Imports config, hot, following and the packages below. Begin with `places.py`.
"""
