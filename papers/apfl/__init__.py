"""The AP-FL chapter of the Durham thesis."""
