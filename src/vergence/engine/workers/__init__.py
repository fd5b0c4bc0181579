"""Where client work runs: this process, other processes, or Ray."""
