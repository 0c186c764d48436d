"""Hot to cold: takes messages from a hot log in batches and commits them to the tier, fairly.

The dispatcher knows nothing of readers. Both ports are in `dispatcher.ports`: `HotLog`, the source
of messages, and `TierPort`, their destination.
"""
