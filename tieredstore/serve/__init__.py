"""Server of a tier's history to RocketMQ clients, over RocketMQ's remoting protocol."""
