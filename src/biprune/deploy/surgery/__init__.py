"""How modules are cut: what a channel or a head owns in a layer, and removing it."""
