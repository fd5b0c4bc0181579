"""Machine unlearning: a model without one person, and the removal of that person's data."""
