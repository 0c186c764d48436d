"""The queues of a store whose ConsumeQueues cannot be read, made from its CommitLog alone."""
