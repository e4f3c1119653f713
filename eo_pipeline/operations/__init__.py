"""Going back, going on past losses, maintenance and status."""
