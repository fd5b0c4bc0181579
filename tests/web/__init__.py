"""Tests of models made for people who took no part."""
