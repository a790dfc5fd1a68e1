"""The integrations, each against the library that it serves."""
