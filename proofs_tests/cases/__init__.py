"""Faults that public samplers had, each as a small test with its right value."""
