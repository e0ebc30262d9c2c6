"""The mathematics, once, for every array library.

Statistics, policies, cards, softmax and other normalisers, reference attention, bounds.
"""
