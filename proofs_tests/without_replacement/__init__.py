"""Tests of sampling without replacement: keys, beams, estimators."""
