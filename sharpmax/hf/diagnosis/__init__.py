"""Measure what every head of a model does at every length, and prove what it must do."""
