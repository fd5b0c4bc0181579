"""Video in and out: predictions, overlays, summaries and eye patches."""
