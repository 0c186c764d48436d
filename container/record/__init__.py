"""RocketMQ messages and ConsumeQueue units, single and as columns. No I/O."""
