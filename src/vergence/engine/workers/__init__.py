"""Workers that carry out client tasks: in this process, in other processes, or by Ray."""
