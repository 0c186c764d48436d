"""What a path in a tier says, both ways: RocketMQ's names and those of our own objects."""
