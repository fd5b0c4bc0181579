"""Private inference: prediction under secret sharing."""
