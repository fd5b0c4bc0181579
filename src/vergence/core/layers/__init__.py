"""Network layers that torch does not have."""
