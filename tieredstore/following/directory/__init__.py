"""Store directory of a broker: layout, queues, identity of its CommitLog, pins.

Begin with `layout.py`.
"""
