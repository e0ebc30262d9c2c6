"""The small models that we train ourselves."""
