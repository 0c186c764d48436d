"""The version, for code that needs nothing else of the package."""

VERSION = "0.1.0"
