"""How attention disperses as inputs grow, and what can be proved about it: from arrays and callables."""

from sharpmax.dispersion.forecast import Forecast, forecast
from sharpmax.dispersion.measure import measure, quantities
from sharpmax.dispersion.rates import DecayFit, fit_decay
from sharpmax.dispersion.record import QUANTITIES, Dispersion

__all__ = ["QUANTITIES", "DecayFit", "Dispersion", "Forecast", "fit_decay", "forecast", "measure", "quantities"]
