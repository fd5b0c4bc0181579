"""Safe readers of the files of data sets."""
