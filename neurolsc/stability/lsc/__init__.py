"""LSC: local stability set by pre-training."""
