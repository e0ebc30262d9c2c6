"""The mathematics, once, for every array library: statistics, policies, cards, softmax, normalisers, attention, bounds."""
