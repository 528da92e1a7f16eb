"""Experiments as data: what a run is, what came of it, and what runs it."""
