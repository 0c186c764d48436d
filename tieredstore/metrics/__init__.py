"""Metrics, liveness and readiness of a follower, for operators.

`families.py` has the sample (`Moment`), and names and units of all metrics made of it. `page.py`
judges the sample and serves metrics and verdicts over HTTP. `summary.py` has queues and topics of a
tier as plain values, which readers and commands use, too.
"""
