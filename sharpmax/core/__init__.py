"""The mathematics, once, for every array library: statistics, policies, cards, softmax, reference attention, bounds."""
