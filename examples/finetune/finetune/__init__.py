"""Federated fine-tuning of MiniLM with LoRA on SST-2."""
