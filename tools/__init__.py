"""Scripts for who works on vergence; not part of the package."""
