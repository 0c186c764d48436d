"""Opening of a tier, for reading or writing: location, stores, identity, ownership, report.

`reader` opens a tier for readers, `owner` for its owner; `takeover` decides whether a start may own
the tier; `tiering` has an owner's dispatcher and background tasks. Imports config, hot, following
and the packages below. Begin with `places.py`.
"""
