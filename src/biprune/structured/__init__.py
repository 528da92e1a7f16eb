"""Units that can go for good: which belong together, and the model without them."""
