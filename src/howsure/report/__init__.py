"""A report as one HTML file that opens from disk; see docs/report.md."""

from howsure.report.evaluation import build as build
from howsure.report.evaluation import from_predictions as from_predictions
from howsure.report.options import Options as Options
from howsure.report.page import to_html as to_html
from howsure.report.page import write as write
from howsure.report.reproduce import decoded as decoded
from howsure.report.values import Report as Report
