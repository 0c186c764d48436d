"""Shared parts of an owner's background steps: schedule, deletion rule, options, clock.

Imports queues and metadata, no step. Begin with `step.py`.
"""
