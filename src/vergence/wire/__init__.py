"""Replies as bytes: codecs, the encoding, and sizes without encoding."""
