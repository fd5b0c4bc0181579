"""The engine: answers a method's requests, round by round."""
