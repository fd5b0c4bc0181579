"""Protocols of a table's parts: on whose data, trained with whom, attacked or not, scored how."""
