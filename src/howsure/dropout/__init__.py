"""Dropout on a trained network: where it goes, its masks, and how they are applied."""

from howsure.dropout.masks import check_rates as check_rates
from howsure.dropout.masks import draw_uniforms as draw_uniforms
from howsure.dropout.masks import masks as masks
from howsure.dropout.mode import DropoutMode as DropoutMode
from howsure.dropout.sites import Placement as Placement
from howsure.dropout.sites import Site as Site
from howsure.dropout.sites import as_placement as as_placement
from howsure.dropout.sites import describe as describe
from howsure.dropout.sites import find_sites as find_sites
