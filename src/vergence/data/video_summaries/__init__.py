"""Data sets of videos with summaries or ratings by people."""
