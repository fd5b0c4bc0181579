"""The runs behind each paper's tables: methods, settings, and under which protocol."""
