"""Watching a Hugging Face model: how its attention is reached, and the Trainer's callback."""
