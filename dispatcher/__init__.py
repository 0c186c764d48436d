"""Hot to cold: takes messages from a hot log in batches and commits them to the tier, fairly.

Knows nothing of readers. What it needs from a hot log is one protocol, `dispatcher.hot_log.HotLog`.
"""
