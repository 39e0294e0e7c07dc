"""The types of parameters and settings: written with units in YAML, floats in the code.

A value that `yamlfile.checked` validates carries a context, and must name its unit; what the code itself passes
(`Params(over=600.0)`) carries none, and may be a bare float.
"""

from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from kvlogd import quantity
from kvlogd.gauge import GPU_SIGNALS, HOST_SIGNALS
from kvlogd.quantity import Unit
from kvlogd.window import SIGNALS, SOURCE_SIGNALS

_UNITS = {
    name: signal.unit
    for signals in (SIGNALS, SOURCE_SIGNALS, GPU_SIGNALS, HOST_SIGNALS)
    for name, signal in signals.items()
}


def _read_by(parse: Callable[[str], float], wanted: str) -> BeforeValidator:
    def read(value: object, info: ValidationInfo) -> float:
        if isinstance(value, str):
            return parse(value)
        # `5.0` in a file has no unit, and `.nan` is no number
        if isinstance(value, float) and info.context is None:
            return value
        raise ValueError(f"needs a unit: write {wanted}")

    return BeforeValidator(read)


def _some_time(value: float) -> float:
    if value <= 0:
        raise ValueError("must be longer than nothing: write a duration like 5m")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("must be a whole number from 1 on")
    return value


def _signal(value: object) -> str:
    if isinstance(value, str) and value in _UNITS:
        return value
    raise ValueError(f"no signal of that name: {quantity.nearest(str(value), list(_UNITS))}")


def _quantity(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a quantity like 3m, 10% or 8")
    return str(value)


Duration = Annotated[float, _read_by(quantity.seconds, "a duration like 5m")]
"""Seconds, 0 included."""
Span = Annotated[Duration, AfterValidator(_some_time)]
"""Seconds, more than none: what something is divided by or repeated after."""
Points = Annotated[float, _read_by(quantity.share, "a share like 10% or 3 points")]
"""A share 0..1, written as `3 points` or `10%`."""
PerTime = Annotated[float, _read_by(quantity.per_second, "a rate like 5/min")]
"""So many events a second."""
PointsPerTime = Annotated[float, _read_by(quantity.share_per_second, "a rate like 0.5 points/h")]
"""Which share a second."""
Size = Annotated[float, _read_by(quantity.size_bytes, "a size like 64MiB")]
"""Bytes."""
Count = Annotated[int, BeforeValidator(_count)]
SignalName = Annotated[str, BeforeValidator(_signal)]
AnyQuantity = Annotated[str, BeforeValidator(_quantity)]
"""A quantity in the unit of some signal, as text: `in_unit_of` reads it."""


def unit_of(signal: str) -> Unit:
    """Return the unit of a signal."""
    return _UNITS[signal]


def is_duration(signal: str) -> bool:
    """Return whether a signal says for how long something has been so."""
    return unit_of(signal) is Unit.SECONDS


def in_unit_of(signal: str, text: str | None) -> float:
    """Return a quantity as a number in the signal's unit. Raises ValueError where it is in another."""
    return quantity.in_unit(text or "", unit_of(signal))
