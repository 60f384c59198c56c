"""The strategy that is wrapped: what it wraps itself, the step it makes, and its own way of running a run."""
