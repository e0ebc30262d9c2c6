"""How attention disperses as inputs grow, and what can be proved about it: from arrays and callables."""

from sharpmax.diagnose.dispersion import QUANTITIES, Dispersion
from sharpmax.diagnose.measure import measure, quantities
from sharpmax.diagnose.rates import DecayFit, fit_decay

__all__ = ["QUANTITIES", "DecayFit", "Dispersion", "fit_decay", "measure", "quantities"]
