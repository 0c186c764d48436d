"""RocketMQ's own tiered metadata: read it, import a tier from it, export ours as it."""
