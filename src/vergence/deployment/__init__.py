"""Deployment of one experiment on many machines: a server, its clients, and their messages."""
