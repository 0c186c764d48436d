"""The version, for whoever needs nothing else of the package."""

VERSION = "0.1.0"
