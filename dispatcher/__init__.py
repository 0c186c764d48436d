"""Hot to cold: takes messages from a hot log in batches and commits them to the tier, fairly.

The dispatcher knows nothing of readers. Its two ports are `dispatcher.hot_log.HotLog`, where
messages come from, and `dispatcher.tier_port.TierPort`, where they go to.
"""
