"""Privacy audits: attacks on a finished run by its server, or by an outsider with its model."""
