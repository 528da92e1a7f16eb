"""Experiments as data: what a run is, what came of it, and what leads from one to the other."""
