"""One experiment on many machines: a server, its clients, and what they say to each other."""
