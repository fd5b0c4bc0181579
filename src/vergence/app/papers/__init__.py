"""The papers behind the project: their printed numbers, their claims, and how to test them."""
