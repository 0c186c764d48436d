"""Finding messages by key: index files, what is not in one yet, and the records themselves."""
