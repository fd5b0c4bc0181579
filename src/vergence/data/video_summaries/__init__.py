"""Videos with human summaries or ratings."""
