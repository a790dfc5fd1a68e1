"""Schedules: the order in which tiles are summarised and summaries merged."""

from fsresearch.schedules.online import online
from fsresearch.schedules.ranks import ranks
from fsresearch.schedules.tiled import tiled

__all__ = ["online", "ranks", "tiled"]
