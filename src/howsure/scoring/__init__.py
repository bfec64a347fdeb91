"""Scoring at scale: any data set, in bounded memory, continued where it was cut."""

from howsure.scoring.run import score as score
from howsure.scoring.sources import as_source as as_source
from howsure.scoring.summary import ScoreSummary as ScoreSummary
