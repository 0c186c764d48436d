"""Dispatcher: reads messages from a hot log in batches and commits them to a tier, fairly.

It does not depend on readers. Both ports are in `dispatcher.ports`: `HotLog`, the source of
messages, and `TierPort`, their destination. The rules are in `queue_progress.py` (when a queue is
due), `round_plan.py` (which queues, how much) and `error_policy.py`; `work.py` acts on them.
"""
