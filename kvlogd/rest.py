"""When a condition is to be asked again. Pure."""

from math import inf

CALM_S = 600.0
"""So long a condition may rest where no record shows strain, if only such a record has something for it."""


class Resting:
    """What a condition says after each judgement of when it may say something else; unsaid, that is at each tick."""

    rest_s: float = 0.0
    """It rests for so long ..."""
    least: int = 0
    """... and until the run has so many records ..."""
    calm_s: float = -inf
    """... and for so long if none of those records shows strain (`kvlogd.window.Window.strained`) ..."""
    ripe: float = inf
    """... but in no case longer than until the run has so many records."""
