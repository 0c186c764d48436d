"""Wire format: frames, typed requests, and the connection of a client with its limits."""
