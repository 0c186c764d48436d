"""RocketMQ's own tiered metadata: reading it, import of a tier, export of ours."""
