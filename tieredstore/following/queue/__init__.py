"""A broker's ConsumeQueues: their files, their ends, and where they begin."""
