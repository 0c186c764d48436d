"""A broker's CommitLog as bytes: mapped files, its tail, and rounds that are read in one pass."""
