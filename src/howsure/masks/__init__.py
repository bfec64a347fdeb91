"""Dropout on a trained network: where it goes, its masks, and how they are applied."""

from howsure.masks.mode import DropoutMode as DropoutMode
from howsure.masks.mode import check_rates as check_rates
from howsure.masks.mode import draw_uniforms as draw_uniforms
from howsure.masks.mode import masks as masks
from howsure.masks.sites import NothingToDropError as NothingToDropError
from howsure.masks.sites import Placement as Placement
from howsure.masks.sites import Site as Site
from howsure.masks.sites import as_placement as as_placement
from howsure.masks.sites import describe as describe
from howsure.masks.sites import find_sites as find_sites
from howsure.masks.variance_model import VarianceModel as VarianceModel
