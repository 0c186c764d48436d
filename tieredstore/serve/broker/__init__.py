"""Server beside a running broker: as a proxy in front of it, or as its slave."""
