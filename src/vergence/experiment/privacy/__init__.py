"""The tables of privacy in experiments, and what runs spent."""
