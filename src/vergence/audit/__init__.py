"""Audits: a finished run attacked as its server or a stranger could."""
