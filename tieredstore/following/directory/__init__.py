"""What lies in the store directory of a broker: files, queues, identity, pins."""
