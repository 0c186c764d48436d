"""Configuration: RocketMQ keys and our own, sources of their values, and the options built of them.

Begin with `effective.py`, the configuration of a process.
"""
