"""Configuration: RocketMQ's keys and ours, where their values come from, and what they make."""
