"""Units of messages whose ConsumeQueue files the broker no longer has, made from the CommitLog."""
