"""Audits with few samples."""

from howsure.auditing import audit


def quick(model, data, noise=None, rate=None, **options):
    return audit(
        model, data, noise, rate, **{"samples": 400, "show_progress": False, "seed": 1, **options}
    )
