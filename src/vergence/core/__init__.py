"""The ideas everything else is written in: parameters, masks, conversations, state."""
