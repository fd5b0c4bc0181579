"""The PE-ZSL chapter of the Durham thesis."""
