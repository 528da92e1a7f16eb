"""The front: `prune` runs our training loop, `attach` and `hold` work in the user's."""
