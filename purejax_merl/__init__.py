"""Evolution and gradients together, for teams of agents, compiled."""
