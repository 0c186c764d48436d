"""Administrative commands as functions: compact, delete, offload, repair, scrub.

Each opens a tier as its owner for a while. `tieredstore.cli` prints what they return.
"""
