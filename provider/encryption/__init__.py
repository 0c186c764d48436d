"""Client-side encryption of objects, under keys that the storage never sees."""
