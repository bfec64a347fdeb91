"""What a trained model does not say by itself, found on held-out data."""

from howsure.fit.dropout import Fit as Fit
from howsure.fit.method import FitResult as FitResult
from howsure.fit.method import fit_method as fit_method
from howsure.fit.options import DEFAULT_RATES as DEFAULT_RATES
from howsure.fit.options import FitOptions as FitOptions
from howsure.fit.options import ModelPart as ModelPart
from howsure.fit.temperature import TemperatureFit as TemperatureFit
from howsure.fit.variance import PosteriorFit as PosteriorFit
