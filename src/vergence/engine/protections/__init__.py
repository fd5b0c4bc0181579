"""Protections in a run: what each does in clients' turns, on the server, and to its budget."""
