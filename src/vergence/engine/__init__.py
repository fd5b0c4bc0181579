"""The engine: who answers a method's requests, round by round."""
