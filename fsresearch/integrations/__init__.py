"""Samplers where users already are: one module a library, imported only by those who have it."""
