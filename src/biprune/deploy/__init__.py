"""What becomes of a pruned model: files, for now."""
