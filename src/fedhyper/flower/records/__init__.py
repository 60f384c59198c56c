"""Flower's records: arrays by name and which of them are trained, and which replies may be believed."""
