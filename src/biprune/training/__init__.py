"""The one training loop, and what it needs: batches, schedules, seeds, checkpoints."""
