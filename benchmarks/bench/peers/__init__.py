"""One script per other simulator; each runs in its own Python, and needs nothing of vergence."""
