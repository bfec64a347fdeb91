"""The methods, one module each, which ends with its `METHOD`: a function and what it uses."""

from __future__ import annotations

from howsure.methods import ensemble, gradients, heteroscedastic, linear, propagation, sampling
from howsure.methods.choice import Choice as Choice
from howsure.methods.choice import choose as choose
from howsure.methods.method import METHODS as METHODS
from howsure.methods.method import RENAMED as RENAMED
from howsure.methods.method import Fits as Fits
from howsure.methods.method import Method as Method
from howsure.methods.method import MethodName as MethodName
from howsure.methods.method import Uses as Uses
from howsure.methods.method import check_method as check_method
from howsure.methods.method import method_of as method_of
from howsure.methods.sampling import sampling_for as sampling_for

METHODS |= {
    method.name: method
    for method in (
        propagation.ADF,
        linear.METHOD,
        gradients.METHOD,
        sampling.MC_DROPOUT,
        sampling.NOISE_SAMPLING,
        propagation.SAMPLED_ADF,
        propagation.CONSTANT,
        heteroscedastic.METHOD,
        ensemble.METHOD,
    )
}
