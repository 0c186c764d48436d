"""How changes of the metadata become durable, one owner at a time."""
