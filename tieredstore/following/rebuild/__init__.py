"""Units of messages whose ConsumeQueue files the broker no longer has, from the CommitLog."""
