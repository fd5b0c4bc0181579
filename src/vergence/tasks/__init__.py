"""What is learned: inputs, losses, metrics and one score per task."""
