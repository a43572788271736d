"""The grades of `tests.bench.estimates` that the project promises; that module prints all of them, a row a model.

"Cold" starts from the constants, "carried" from what other sessions of the model left behind.
"""

from __future__ import annotations

from pathlib import Path

from tests.bench import estimates
from tests.bench.figures import Figure, Section

CUTS = (
    ("after a cut, measured growth", "growth", 1.0, 4.0),
    ("after a cut, learned rate alone, cold", "rate", 2.5, 8.0),
    ("after a cut, learned rate alone, carried", "rate+", 2.5, 8.0),
)
"""Name, which errors, the most at the median and at the 90th percentile."""


def run(folder: Path, quick: bool) -> Section:
    corpus = estimates.corpus_dir()
    sessions = estimates.load(corpus) if corpus.is_dir() else []
    if not sessions:
        return Section("graded", f"left out: no corpus at {corpus}", ())
    estimates.grade(sessions)
    figures = []
    for name, what in (("cold", "next"), ("carried", "next+")):
        error = estimates.mean(estimates.pooled(sessions, what))
        figures.append(Figure(f"next request, mean error, {name}", error * 100, "%", 0.5))
    for name, what, median, ninetieth in CUTS:
        errors = estimates.pooled(sessions, what)
        for word, at, most in (("median", 0.5, median), ("90th", 0.9, ninetieth)):
            figures.append(Figure(f"{name}, {word}", estimates.quantile(errors, at) * 100, "%", most))
    return Section(
        "graded", "estimates against the provider's counts, pooled over the recorded Claude sessions", figures
    )
