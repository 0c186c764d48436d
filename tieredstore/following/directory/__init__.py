"""Store directory of a broker: layout, queues, pins.

Begin with `layout.py`.
"""
