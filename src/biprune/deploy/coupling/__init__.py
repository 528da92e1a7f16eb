"""Who goes with whom: the groups of a model, each tried before it is offered."""
