"""Models for people who took no part in a run, made from a few labelled samples of theirs."""
