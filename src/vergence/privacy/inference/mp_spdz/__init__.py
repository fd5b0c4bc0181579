"""What MP-SPDZ's compiler runs, beside which vergence is not installed: a plain script."""
