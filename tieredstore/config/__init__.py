"""Configuration: RocketMQ's keys and ours, sources of their values, and the options made of them.

Begin with `effective.py`, the configuration of a process.
"""
