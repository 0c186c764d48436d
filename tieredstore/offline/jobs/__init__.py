"""Jobs over all of a tier: audit, rebuild of files and of metadata, on an engine.

A job maps over splits, groups by target and reduces. Begin with `engine.py`.
"""
