"""Private prediction on several machines: the folders that the owner makes, parties, clients."""
