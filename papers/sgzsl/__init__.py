"""The SG-ZSL chapter of the Durham thesis."""
