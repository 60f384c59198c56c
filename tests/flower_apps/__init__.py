"""Small Flower apps in the shape of Flower's own examples, on scikit-learn's digits; see ``suite``."""
