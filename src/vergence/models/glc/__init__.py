"""Global-local correlation (GLC) networks."""
