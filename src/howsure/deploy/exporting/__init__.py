"""Prediction with its variances as a file that runs without howsure: ONNX or torch's `.pt2`."""

from howsure.deploy.exporting.export import Exported as Exported
from howsure.deploy.exporting.export import export as export
from howsure.deploy.exporting.metadata import read_metadata as read_metadata
from howsure.errors import ExportError as ExportError
