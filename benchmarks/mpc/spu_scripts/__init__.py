"""Plain scripts that SPU's own Python runs, beside which vergence is not installed."""
