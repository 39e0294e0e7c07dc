"""Print the log of one trace, as `python -m bench.traces CLASS SEED NUMBER [ENGINE]`, e.g. `leak_abort 2026 3`."""

import argparse

from bench.traces.classes import draw
from bench.traces.labels import TraceClass, TraceId
from bench.traces.logline import lines
from bench.traces.server import run


def main() -> None:
    """Print what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench.traces", description="Print the log of one trace.")
    parser.add_argument("trace_class", type=TraceClass, metavar="CLASS", help=", ".join(TraceClass))
    parser.add_argument("seed", type=int, metavar="SEED")
    parser.add_argument("number", type=int, metavar="NUMBER", help="of the trace within its class, from 0 on")
    parser.add_argument("engine", type=int, nargs="?", default=0, metavar="ENGINE", help="default: 0")
    parser.add_argument("--hours", type=float, metavar="H", help="cut the plan to a length; it is then another trace")
    asked = parser.parse_args()
    trace = TraceId(asked.seed, asked.trace_class, asked.number)
    streams = run(draw(trace, int(asked.hours * 3600) if asked.hours else None))
    for line in lines(streams[asked.engine]):
        print(line)


if __name__ == "__main__":
    main()
