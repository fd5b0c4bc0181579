"""First-person and screen video with gaze."""
