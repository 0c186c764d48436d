"""The ports' promises as test classes, and storage that fails on purpose. Needs pytest."""
