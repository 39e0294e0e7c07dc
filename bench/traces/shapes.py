"""How traffic is spread over the days: for each profile a share of the peak rate in each minute."""

import math
from random import Random

from bench.traces.chance import slow_noise, switching
from bench.traces.plan import Profile

DAY_MIN = 1440


def wave(hour: float, top_hour: float) -> float:
    """Return a daily wave between 0 and 1 with its top at an hour."""
    return 0.5 * (1 + math.cos((hour - top_hour) / 24 * 2 * math.pi))


def hours_of(minutes: int, first_hour: float) -> list[float]:
    """Return the hour of the day of each minute."""
    return [(minute / 60 + first_hour) % 24 for minute in range(minutes)]


def weekend(minutes: int, first_hour: float, quiet: float) -> list[float]:
    """Return 1 on work days and `quiet` on the two days after five of them, by minute."""
    first_min = first_hour * 60
    return [quiet if int((minute + first_min) // DAY_MIN) % 7 >= 5 else 1.0 for minute in range(minutes)]


def shape(rng: Random, profile: Profile, minutes: int, first_hour: float) -> list[float]:
    """Return the share of the peak rate in each minute."""
    hours = hours_of(minutes, first_hour)
    if profile is Profile.DIURNAL:
        rates = _diurnal(rng, hours, first_hour)
    elif profile is Profile.IDLE_NIGHTS:
        rates = _idle_nights(rng, hours, first_hour)
    elif profile is Profile.BURSTY:
        rates = switching(rng, minutes, [0.05, 0.25, 0.6, 1.0], rng.uniform(8, 60))
        if rng.random() < 0.5:
            rates = [rate * (0.5 + 0.5 * wave(hour, 14)) for rate, hour in zip(rates, hours, strict=True)]
    elif profile is Profile.BATCH:
        rates = _batch(rng, minutes)
    elif profile is Profile.SPARSE:
        rates = [0.4 + 0.6 * max(0.0, 2 * wave(hour, 14) - 1) for hour in hours]
    elif profile is Profile.SESSIONS and rng.random() < 0.6:
        rates = [0.35 + 0.65 * max(0.0, 2 * wave(hour, 13) - 1) for hour in hours]
    else:
        rates = [1.0] * minutes
    if profile is not Profile.CLOSED:
        noise = slow_noise(rng, minutes, rng.uniform(20, 200), 0.10)
        rates = [rate * factor for rate, factor in zip(rates, noise, strict=True)]
    most = max(max(rates), 1e-9)
    return [rate / most for rate in rates]


def _diurnal(rng: Random, hours: list[float], first_hour: float) -> list[float]:
    night, steep = rng.uniform(0.12, 0.5), rng.uniform(0.8, 2.0)
    rates = [night + (1 - night) * wave(hour, 14) ** steep for hour in hours]
    if rng.random() < 0.6:
        quiet = weekend(len(hours), first_hour, rng.uniform(0.4, 0.9))
        rates = [rate * factor for rate, factor in zip(rates, quiet, strict=True)]
    return rates


def _idle_nights(rng: Random, hours: list[float], first_hour: float) -> list[float]:
    opens, closes = rng.uniform(6, 9), rng.uniform(17, 22)
    night = rng.choice([0.0, 0.002, 0.01])
    rates = [
        night + (math.sin((hour - opens) / (closes - opens) * math.pi) if opens < hour < closes else 0.0)
        for hour in hours
    ]
    if rng.random() < 0.6:
        quiet = weekend(len(hours), first_hour, rng.uniform(0.0, 0.3))
        rates = [rate * factor for rate, factor in zip(rates, quiet, strict=True)]
    return rates


def _batch(rng: Random, minutes: int) -> list[float]:
    rates = [rng.choice([0.0, 0.0, 0.03, 0.1])] * minutes
    gap_min = DAY_MIN / rng.uniform(2, 8)
    minute = int(rng.expovariate(1 / gap_min)) + 5
    while minute < minutes:
        length, level = rng.randint(10, 180), rng.uniform(0.4, 1.0)
        rates[minute : minute + length] = [level] * len(rates[minute : minute + length])
        minute += int(rng.expovariate(1 / gap_min)) + 5
    return rates
