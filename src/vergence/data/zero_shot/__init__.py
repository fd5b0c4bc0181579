"""Features of seen and unseen classes."""
