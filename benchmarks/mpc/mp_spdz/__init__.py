"""Plain script that MP-SPDZ's compiler runs, beside which vergence is not installed."""
