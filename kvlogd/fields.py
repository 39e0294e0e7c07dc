"""The types of a rule's parameters: written with units in YAML, floats in the code."""

from typing import Annotated

from pydantic import BeforeValidator

from kvlogd import quantity
from kvlogd.quantity import Unit
from kvlogd.window import SIGNALS, SOURCE_SIGNALS


def _duration(value: object) -> float:
    return quantity.seconds(value) if isinstance(value, str) else _plain(value, "a duration like 5m")


def _share(value: object) -> float:
    return quantity.share(value) if isinstance(value, str) else _plain(value, "a share like 10% or 3 points")


def _per_time(value: object) -> float:
    return quantity.per_second(value) if isinstance(value, str) else _plain(value, "a rate like 5/min")


def _plain(value: object, wanted: str) -> float:
    """Let the code's own defaults through; a bare number in a file has no unit and is refused."""
    if isinstance(value, float):
        return value
    raise ValueError(f"needs a unit: write {wanted}")


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number from 1 on")
    return value


def _signal(value: object) -> str:
    if isinstance(value, str) and (value in SIGNALS or value in SOURCE_SIGNALS):
        return value
    raise ValueError(f"no signal of that name: {quantity.nearest(str(value), [*SIGNALS, *SOURCE_SIGNALS])}")


def _quantity(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a quantity like 3m, 10% or 8")
    return str(value)


Duration = Annotated[float, BeforeValidator(_duration)]
"""Seconds."""
Points = Annotated[float, BeforeValidator(_share)]
"""A share 0..1, written as `3 points` or `10%`."""
PerTime = Annotated[float, BeforeValidator(_per_time)]
"""So many a second."""
Count = Annotated[int, BeforeValidator(_count)]
SignalName = Annotated[str, BeforeValidator(_signal)]
AnyQuantity = Annotated[str, BeforeValidator(_quantity)]
"""A quantity in the unit of some signal, as text: `in_unit_of` reads it."""


def unit_of(signal: str) -> Unit:
    """Return the unit of a signal."""
    return SIGNALS[signal].unit if signal in SIGNALS else SOURCE_SIGNALS[signal].unit


def in_unit_of(signal: str, text: str | None) -> float:
    """Return a quantity as a number in the signal's unit. Raises ValueError where it is in another."""
    return quantity.in_unit(text or "", unit_of(signal))
