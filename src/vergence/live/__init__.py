"""Live gaze: an exported model predicts maps or directions on the frames of a camera."""
