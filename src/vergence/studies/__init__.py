"""Studies over many runs: sweeps, protocols, calibration and measures."""
