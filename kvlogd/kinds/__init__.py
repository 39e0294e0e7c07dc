"""The kinds of condition that a rule may use: one module each, and this list of them.

A kind has NAME, SCOPES, a frozen `Params` model, and `make(params)`, which returns a new evaluator for one run
(or one source). One that judges several lives of an engine says so with LASTING, one that cannot be combined with
others with ALONE. To add a kind, write its module and its test, and name it here.

An evaluator is asked at each tick, unless it says that it may rest (`kvlogd.rest`); what it said stands meanwhile.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from kvlogd.gauge import GpuWindow, HostWindow
from kvlogd.kinds import (
    capacity,
    collapse,
    creep,
    device_skew,
    floor,
    growth,
    rate,
    recompute,
    recovery,
    skew,
    sql,
    stall,
    threshold,
    trend,
)
from kvlogd.model import Judgement
from kvlogd.window import SourceWindow, Window


class Evaluator(Protocol):
    """One condition at work on one run or source. Pure: what it knows, it was told."""

    def judge(self, window: Window, at_s: float) -> Judgement:
        """Return what the condition says at a time not before that of the window's last record."""
        ...


class SourceEvaluator(Protocol):
    """One condition at work on a whole source."""

    def judge_source(self, source: SourceWindow, at_s: float) -> Judgement:
        """Return what the condition says at a time."""
        ...


class GpuEvaluator(Protocol):
    """One condition at work on a GPU."""

    def judge_gpu(self, window: GpuWindow, at_s: float) -> Judgement:
        """Return what the condition says at a time."""
        ...


class HostEvaluator(Protocol):
    """One condition at work on the memory of a server."""

    def judge_host(self, window: HostWindow, at_s: float) -> Judgement:
        """Return what the condition says at a time."""
        ...


KINDS: Mapping[str, Any] = {
    module.NAME: module
    for module in (
        capacity,
        collapse,
        creep,
        device_skew,
        floor,
        growth,
        rate,
        recompute,
        recovery,
        skew,
        sql,
        stall,
        threshold,
        trend,
    )
}


def is_lasting(kind: str) -> bool:
    """Return whether a kind judges the lives of an engine: its alert goes on through a restart."""
    return bool(getattr(KINDS[kind], "LASTING", False))


def about(kind: str) -> str:
    """Return in plain words what a kind looks at and what it cannot see."""
    return str(KINDS[kind].__doc__).strip().replace("`", "")
