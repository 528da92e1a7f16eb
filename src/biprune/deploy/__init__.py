"""What becomes of a pruned model: smaller, on disk, measured, shipped."""
