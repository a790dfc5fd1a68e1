"""Tests and statistical proofs, mirroring the folders of the code."""
