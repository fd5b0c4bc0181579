"""Attacks: what somebody who saw a run can make of it, and scores that say how much it is."""
