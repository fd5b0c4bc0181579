"""Generated first-person video with gaze."""
