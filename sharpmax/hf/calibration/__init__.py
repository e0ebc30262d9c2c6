"""Fit a temperature per head, choose how much of it to keep, and judge it on held-out data."""
