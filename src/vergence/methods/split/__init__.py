"""Split learning: a client has the first layers, a server the rest."""
