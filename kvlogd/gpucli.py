"""`kvlogd gpu`: has the daemon let go of the GPUs, so that one can be reset, and take them up again."""

import argparse
import json
from pathlib import Path

from kvlogd.errors import StoreError


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    gpu = commands.add_parser("gpu", help="let go of the GPUs for a while, so that they can be reset")
    verbs = gpu.add_subparsers(title="commands", metavar="COMMAND", required=True)
    release = verbs.add_parser(
        "release",
        help="let go of all GPUs: kvlogd gpu release 10m",
        description="The running daemon ends the process that reads the GPUs, so that `nvidia-smi -r` and a change of "
        "MIG find them free. It takes them up again by itself after the time, or at once with `kvlogd gpu resume`.",
    )
    release.add_argument("time", metavar="TIME", help="how long, e.g. 10m; a day at most")
    resume = verbs.add_parser("resume", help="take the GPUs up again")
    for verb in (release, resume):
        verb.add_argument("--db", type=Path, metavar="FILE", help="the store, where it is not the config's")
        verb.add_argument("--config", type=Path, metavar="FILE")
        verb.add_argument("--json", action="store_true", help="one JSON object")
        verb.set_defaults(run=_release)
    resume.set_defaults(time="0s")


def _release(arguments: argparse.Namespace) -> int:
    from kvlogd import ask
    from kvlogd.errors import ConfigError
    from kvlogd.live import places_of
    from kvlogd.quantity import duration_text, seconds

    try:
        for_s = seconds(arguments.time)
    except ValueError as error:
        raise ConfigError(str(error), where="gpu release", mend="write it like 10m") from error
    store, places = places_of(arguments)
    released = ask.release(places, store, for_s)
    if released.get("is_stuck"):
        mend = "see dmesg for Xid; the host may need a reboot"
        raise StoreError("the process that read the GPUs hangs in the driver and cannot be ended", mend=mend)
    if arguments.json:
        print(json.dumps(released))
    elif for_s:
        print(f"released for {duration_text(for_s)}; `sudo kvlogd gpu resume` takes them up before that")
    else:
        print("taken up again")
    return 0
