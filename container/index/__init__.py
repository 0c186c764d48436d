"""RocketMQ's index files, which find messages by key: formats, and keys in columns."""
