"""Files of data sets, read safely."""
