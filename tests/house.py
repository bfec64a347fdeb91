"""The rooms of the package and their order, as the tests of the house see them."""

import ast
from pathlib import Path

import howsure as hs

PACKAGE = Path(hs.__file__).parent
ROOT = PACKAGE.parents[1]
# Each layer imports only what is above it; within a layer, what stands before.
LAYERS = {
    "small things that everyone uses": ["errors", "values"],
    "the paper's propagation": ["moments"],
    "where uncertainty enters": ["noise", "masks", "setup"],
    "the variance from gradients": ["gradients"],
    "methods": ["prediction", "methods"],
    "judged and fitted on data": ["metrics", "fit", "calibrate"],
    "on the robot": ["deploy", "robotics"],
    "the front door": ["uncertain"],
    "tools around it": ["auditing", "data", "plots", "testing"],
    "what people read and type": ["report", "cli", "__main__"],
}
LEVEL = {name: level for level, names in enumerate(LAYERS.values()) for name in names}


def needed_parts(path):
    """The rooms that a file imports when it runs; types alone are no dependency."""
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("howsure"):
            parts = node.module.split(".")[1:]
            if id(node) not in for_types:
                yield from parts[:1] or [alias.name for alias in node.names]


PAGE = ROOT / "docs" / "contributing.md"
