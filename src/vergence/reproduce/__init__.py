"""`vergence reproduce`: tables of papers run again, beside printed numbers (`papers/*.toml`)."""
