"""Names of a tier's objects, formatted and parsed: RocketMQ's paths, and our own objects."""
