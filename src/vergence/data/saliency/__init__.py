"""Images with fixations of many viewers."""
