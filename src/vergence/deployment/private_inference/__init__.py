"""Private prediction on machines of their own: the owner's folders, parties, and clients."""
