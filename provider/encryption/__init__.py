"""Objects encrypted before they leave this process, under keys that the storage never sees."""
