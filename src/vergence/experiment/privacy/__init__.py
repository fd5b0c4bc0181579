"""The tables `privacy`, `poison` and `study` of experiments, and the epsilon that runs spent."""
