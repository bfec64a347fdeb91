from pathlib import Path

import howsure.moments.rules  # noqa: F401  (fills the table)
from howsure.moments.rule import registered
from howsure.moments.rule_table import markdown

PAGE = Path(__file__).parents[1] / "docs" / "rules.md"


def test_the_committed_page_is_current():
    assert PAGE.read_text(encoding="utf-8") == markdown(registered()), (
        "run `python -m howsure.moments.rule_table --out docs/rules.md`"
    )


def test_every_rule_has_a_full_row():
    for line in markdown(registered()).splitlines():
        if line.startswith("| `"):
            assert all(cell.strip() for cell in line.replace("\\|", "").split("|")[1:-1]), line
