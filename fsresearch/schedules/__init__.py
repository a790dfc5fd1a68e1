"""Schedules, one a file: the order in which tiles are summarised and summaries merged."""
