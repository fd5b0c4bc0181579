"""Operating system: what Linux, macOS and Windows do in different ways, each in one place.

Locks, process starts, signals, limits, memory and local sockets are asked for here, and nowhere
else in the package. Each is looked for, not taken from the system's name: where it is missing,
another way is taken, or a function says so.
"""
