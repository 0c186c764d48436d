"""Web console: pages of a tier for people, read-only. Needs the extra `console`."""
