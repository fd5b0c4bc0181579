"""What runs in SPU's own Python, beside which vergence is not installed: plain scripts."""
