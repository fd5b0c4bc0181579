"""Safe reading of the files of data sets."""
