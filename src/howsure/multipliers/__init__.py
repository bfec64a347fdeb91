"""Dropout on a trained network: where it goes, its masks, and how they are applied."""

from howsure.multipliers.mode import DropoutMode as DropoutMode
from howsure.multipliers.mode import check_rates as check_rates
from howsure.multipliers.mode import draw_uniforms as draw_uniforms
from howsure.multipliers.mode import masks as masks
from howsure.multipliers.sites import NothingToDropError as NothingToDropError
from howsure.multipliers.sites import Placement as Placement
from howsure.multipliers.sites import Site as Site
from howsure.multipliers.sites import as_placement as as_placement
from howsure.multipliers.sites import describe as describe
from howsure.multipliers.sites import find_sites as find_sites
