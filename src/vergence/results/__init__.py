"""What a run leaves behind: written, read and compared."""
