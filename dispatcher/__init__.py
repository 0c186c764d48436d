"""Dispatcher: reads messages from a hot log in batches and commits them to a tier, fairly.

It does not depend on readers. Both ports are in `dispatcher.ports`: `HotLog`, the source of
messages, and `TierPort`, their destination.
"""
