"""Hot logs: the newest messages, in RocketMQ's own local format."""
