"""Paired tests, intervals and corrections, once for every experiment."""
