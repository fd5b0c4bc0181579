"""Pages for an ethics board."""
