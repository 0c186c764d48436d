"""RocketMQ's index files: which messages have a key. Formats, and what is collected for them."""
