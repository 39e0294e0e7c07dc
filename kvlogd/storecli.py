"""`kvlogd store …`: what is done to a store by hand, while no daemon has it open."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvlogd.salvage import Salvaged

_FINE, _LOST = 0, 1


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command `store` and its verbs."""
    store = commands.add_parser("store", help="mend a damaged store")
    verbs = store.add_subparsers(title="commands", metavar="COMMAND", required=True)
    verb = verbs.add_parser(
        "salvage",
        help="build a new store from what can be read of a damaged one",
        description="Reads a damaged store table by table, takes missing days from the exports beside it, and builds "
        "a new store beside the old one, which stays as it is. Stop kvlogd first.",
        epilog="exit status: 0 all rows were got, 1 some are lost, 2 nothing was built",
    )
    verb.add_argument("--db", type=Path, metavar="FILE", default=Path("/var/lib/kvlogd/kvlogd.duckdb"))
    verb.set_defaults(run=_salvage)


def _salvage(arguments: argparse.Namespace) -> int:
    from kvlogd.salvage import salvage

    salvaged = salvage(arguments.db)
    for line in _told(arguments.db, salvaged):
        print(line)
    return _FINE if salvaged.has_positions and all(got.lost_at_most == 0 for got in salvaged.tables) else _LOST


def _told(path: Path, salvaged: "Salvaged") -> Iterator[str]:
    from kvlogd.quantity import count_text

    for got in salvaged.tables:
        parts = [count_text(got.rows, "row")]
        if got.from_export:
            parts.append(f"{got.from_export} of them from the exports")
        if got.lost_at_most is None:
            parts.append("what else was in it cannot be read")
        elif got.lost_at_most:
            parts.append(f"{got.lost_at_most} lost at most")
        yield f"{got.table:<13} {', '.join(parts)}"
    if not salvaged.has_positions:
        yield (
            "How far the logs were read is lost: kvlogd reads them from their beginning, and rows that are stored "
            "come twice unless you move the old logs away."
        )
    yield f"\nThe new store is {salvaged.target}. To put it in place, with kvlogd stopped:"
    yield f"  mv {path} {path}.damaged; mv -f {path}.wal {path}.damaged.wal; mv {salvaged.target} {path}"
    yield "then start kvlogd: it reads on where the logs were left."
