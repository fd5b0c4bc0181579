"""Local training: solvers, optimizer steps, devices and pruning."""
