"""Why a network misses what is asked for, found out by hand."""

REMARKS: dict[str, str] = {}
