"""What a run writes as it goes, beside its tables: whole rows, TensorBoard events, who holds it."""
