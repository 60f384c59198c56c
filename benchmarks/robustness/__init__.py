"""How far fedhyper ends from a tuned rival, in many settings: ``python -m benchmarks.robustness --help``."""
