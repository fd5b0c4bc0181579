"""Core abstractions: parameters, masks, randomness, messages, conversations and state."""
