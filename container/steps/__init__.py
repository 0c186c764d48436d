"""Parts that all background steps of an owner share: schedule, deletion rule, options, clock.

Imports queues and metadata, no step. Begin with `step.py`.
"""
