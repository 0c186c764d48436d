"""What users import, configure and run: the tiered store, its command line and its hot logs."""

from pathlib import Path

import container
import dispatcher
import fetcher
import provider

# Four of our five packages carry plain names that other distributions use too, and an import that
# finds the wrong one fails far from its cause (decision 0001): so it fails here, by name.
for _layer in (container, dispatcher, fetcher, provider):
    if _layer.__file__ is None or Path(_layer.__file__).parents[1] != Path(__file__).parents[1]:
        raise ImportError(
            f"{_layer.__name__!r} was imported from {_layer.__file__ or 'several places'}, not from"
            f" {Path(__file__).parents[1]}: another distribution or a file in the working directory"
            f" has that name"
        )

__version__ = "0.1.0"
