"""Reports on experiments: tables, explanations and pages."""
