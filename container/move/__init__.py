"""Copies of bytes between objects: merges of small parts, and offload to a second store.

Plans are pure functions of the metadata (`offload_plan`). `repack` and `offload_copies` read,
verify, write and publish. Imports queues, journal and metadata. `container.upkeep` schedules the
work. Begin with `repack.py`.
"""
