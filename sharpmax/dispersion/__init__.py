"""How attention disperses as inputs grow, and what can be proved about it: from arrays and callables."""

from sharpmax.dispersion.measure import measure, quantities
from sharpmax.dispersion.rates import DecayFit, fit_decay
from sharpmax.dispersion.record import QUANTITIES, Dispersion

__all__ = ["QUANTITIES", "DecayFit", "Dispersion", "fit_decay", "measure", "quantities"]
