"""People's recordings, imported into one gaze record and split per person."""
