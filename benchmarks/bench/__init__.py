"""Seconds, processor seconds and memory of the engine, beside plain steps and other simulators."""
