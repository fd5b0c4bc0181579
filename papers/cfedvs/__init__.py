"""The CFed-VS chapter of the Durham thesis."""
