"""Predictions to files: any data set, in bounded memory, resumed after an interruption."""

from howsure.data.scoring.run import ScoreSummary as ScoreSummary
from howsure.data.scoring.run import predict_to_file as predict_to_file
from howsure.data.scoring.sources import as_source as as_source
