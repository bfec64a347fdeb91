"""Multipliers at the units of a trained network: where they sit, dropout masks, and their mode."""

from howsure.multipliers.dry_run import find_sites as find_sites
from howsure.multipliers.dry_run import uncounted_dropout as uncounted_dropout
from howsure.multipliers.mode import Multiply as Multiply
from howsure.multipliers.sites import NothingToDropError as NothingToDropError
from howsure.multipliers.sites import Placement as Placement
from howsure.multipliers.sites import Site as Site
from howsure.multipliers.sites import as_placement as as_placement
from howsure.multipliers.sites import at_rates as at_rates
from howsure.multipliers.sites import check_rates as check_rates
from howsure.multipliers.sites import describe as describe
from howsure.multipliers.sites import draw_uniforms as draw_uniforms
from howsure.multipliers.sites import masks as masks
