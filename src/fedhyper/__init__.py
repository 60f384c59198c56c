"""fedhyper: learning rates for federated learning, set while training runs."""

__version__ = "0.1.0"
