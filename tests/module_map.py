"""The module map as data: who may import whom, which libraries, what stays pure. Held by test_imports.

Change the tables here when a module appears or settles.
"""

OPEN_TO_ALL = {"errors", "model"}
EVERYTHING = "*"

MAY_IMPORT = {
    # module: which of our modules it may import. `kinds.*` is each module of that package, `kinds` the package itself
    # and, as a permission, all that is in it. EVERYTHING may be followed by `-name`.
    "__init__": "",
    "__main__": "cli",
    "errors": "",
    "model": "",
    "quantity": "",
    "envelope": "",
    "stamp": "",
    "grammar": "",
    "statsline": "grammar",
    "eventline": "grammar",
    "parse": "grammar stamp statsline eventline",
    "scan": "parse grammar envelope",
    "cutter": "",
    "source": "cutter",
    "engines": "",
    "course": "",
    "window": "course quantity eyes spells",
    "arrivals": "",
    "grain": "arrivals",
    "block": "arrivals course grain",
    "spells": "block",
    "curve": "block grain",
    "room": "block grain",
    "gates": "block curve grain room",
    "ladder": "block curve gates grain room spells",
    "pace": "block course",
    "lives": "block course pace",
    "gauge": "quantity reading",
    "fields": "gauge quantity window",
    "kinds": "gauge kinds window",
    "rest": "",
    "kinds.*": "rest window fields block course spells room ladder pace lives gauge reading eyes tally work",
    "yamlfile": "quantity",
    "rules": "yamlfile fields quantity kinds",
    "config": "yamlfile fields quantity",
    "alerts": "",
    "evaluate": "window gauge kinds quantity rules alerts engines",
    "sideline": "alerts evaluate gauge reading rules",
    "notice": "quantity reading",
    "agenda": "rules",
    "leap": "",
    "pipeline": "agenda alerts engines window evaluate rules course harvest leap track",
    "inquiry": "pipeline rows rules sqlgate",
    "outcome": "",
    "tell": "notice outcome quantity rules proof",
    "minutes": "",
    "table": "",
    "telemetry": "table",
    "alerting": "table",
    "bookkeeping": "table",
    "views": "alerting minutes table telemetry",
    "schema": "alerting bookkeeping table telemetry views",
    "statements": "table",
    "arrow": "table",
    "reading": "",
    "rows": "alerts reading outbox",
    "lock": "",
    "transaction": "alerting arrow bookkeeping rows statements table telemetry",
    "lease": "",
    "disk": "",
    "history": "alerting alerts bookkeeping reading rows statements telemetry outbox",
    "migration": "disk schema transaction",
    "snapshot": "disk lock",
    "days": "",
    "rollup": "days minutes",
    "export": "bookkeeping days rollup schema telemetry",
    "retention": "days export rollup telemetry",
    "recovery": "disk lock",
    "asking": "",
    "salvage": "bookkeeping days disk export lock schema store table telemetry transaction",
    "storecli": "quantity salvage",
    "store": "asking disk export history lease lock migration recovery rows schema snapshot table transaction",
    "piece": "rows",
    "clock": "",
    "stream": "envelope grammar parse piece pipeline rows scan stamp harvest",
    "setup": "config quantity rules channel postman stamp yamlfile",
    "voice": "",
    "feed": "piece stream scrape",
    "revival": "alerts engines memory pipeline rows rules store stream track",
    "intake": (
        "alerts config container feed journal memory piece pipeline reading revival rows setup source stamp "
        "store inquiry stream tail clock harvest scrape"
    ),
    "errands": "",
    "nvml": "reading",
    "gpus": "reading",
    "procfs": "",
    "kin": "procfs reading",
    "lookout": "alerts config gpus kin pipeline procfs quantity reading rows rules setup sideline status voice work",
    "gpucli": "ask live quantity",
    "container": "docker followed piece recall rows tail",
    "overview": "alerts intake lookout piece pipeline quantity rules status stream voice dispatch",
    "herald": "notice piece quantity rows voice",
    "daemon": (
        "channel clock endpoint errands herald intake lock lookout overview retention setup status store "
        "systemd thrift voice watch wire board dispatch heartbeat postman silencing"
    ),
    "service": "clock daemon systemd voice",
    "memory": "engines pipeline rules",
    "followed": "cutter rows",
    "recall": "followed piece rows",
    "remnant": "envelope",
    "unpacked": "followed remnant rows source",
    "trail": "cutter followed piece recall remnant rows source unpacked",
    "tail": "followed piece rows source trail",
    "sqlgate": "rows functions sheet",
    "functions": "",
    "sheet": "rows",
    "journal": "journalctl piece rows envelope",
    "journalctl": "",
    "thrift": "",
    "docker": "",
    "watch": "",
    "sidecar": "reading",
    "chart": "",
    "report": "chart notice outcome quantity rules rows store proof",
    "progress": "",
    "replay": (
        "alerts engines envelope inquiry outcome parse pipeline reading rows rules scan sidecar sideline source stamp "
        "store cutter"
    ),
    "systemd": "",
    "wire": "systemd",
    "caller": "wire",
    "endpoint": "caller rows sheet sqlgate wire",
    "ask": "progress rows sheet status wire",
    "live": "ask config disk lock progress rows setup sheet sqlgate status store wire yamlfile",
    "status": "quantity",
    "checkup": "",
    "servers": "",
    "rotation": "",
    "logcheck": "checkup notice outcome quantity replay rights rotation rules source",
    "journalcheck": "checkup journal logcheck rules source",
    "pagecheck": "checkup clock quantity scrape",
    "gpucheck": "checkup clock config gpus quantity reading status",
    "doctor": (
        "ask channel checkup clock config container disk docker gpucheck journalcheck logcheck pagecheck quantity "
        "rights rules servers setup source stamp systemd tail wire status"
    ),
    "rights": "",
    "proposal": "config servers",
    "install": "config container docker proposal rights servers systemd",
    "manual": "",
    "rulebook": "fields kinds quantity rules window gauge",
    "hostcli": "checkup clock doctor install manual",
    "ruletest": "engines fields inquiry pipeline quantity replay rows rules yamlfile alerts reading sideline harvest",
    "outbox": "alerts",
    "line": "outbox",
    "plan": "alerts line outbox",
    "page": "bulletin letter outbox panel plan rules",
    "dispatch": "alerts config intake line outbox page plan postman rows rules setup stamp store voice",
    "heartbeat": "",
    "silencing": "outbox rows",
    "board": "alerts notice outbox plan quantity status",
    "alertcli": "ask board clock config disk dispatch live notice outbox plan quantity rules silencing status store",
    "proof": "notice reading rules",
    "parcel": "",
    "reply": "",
    "sender": "layout parcel picture reply",
    "postman": "parcel",
    "channel": "config parcel systemd yamlfile",
    "advice": "quantity",
    "notifycli": "advice bulletin channel clock config postman quantity",
    "layout": "",
    "panel": "block chart reading",
    "letter": "layout notice panel proof quantity rules",
    "picture": "chart notice panel quantity",
    "bulletin": "advice layout letter notice quantity",
    "rehearsal": "channel clock config dispatch outcome page plan postman rules setup",
    "exposition": "",
    "interval": "exposition",
    "eyes": "tally work",
    "tally": "",
    "work": "",
    "harvest": "alerts",
    "track": "engines evaluate window",
    "scrape": "clock exposition interval piece",
    "cli": EVERYTHING,
}

MAY_NAME = {
    # a library that is heavy, or not ours, or both: the modules that may import it. Any other library is refused.
    "duckdb": "store",
    "nanoarrow": "arrow",
    "yaml": "yamlfile",
    "pydantic": "config fields kinds kinds.* rules ruletest yamlfile",
    "zstandard": "source",
    "gzip": "source",
    "compression": "source",
    "tqdm": "progress",
    "watchdog": "watch",
    "time": "clock",
    "shtab": "manual",
    "subprocess": "gpus install journalcheck journalctl snapshot postman",
    "pynvml": "nvml",
    "matplotlib": "picture",
    "apprise": "sender",
    "requests": "reply",
    "urllib3": "reply",
}

PURE = (
    "cutter errors model quantity envelope stamp grammar statsline eventline parse scan engines window block spells "
    "arrivals curve grain gates room ladder kinds kinds.* alerts notice evaluate pipeline outcome tell schema "
    "rows chart status functions "
    "sheet checkup manual pace proposal minutes statements days rollup course table telemetry alerting "
    "bookkeeping views reading gauge sideline agenda outbox line plan board parcel advice parcel "
    " layout letter bulletin panel proof   exposition eyes harvest "
    "interval track tally leap lives rest"
)
IMPURE_IMPORTS = {"os", "time", "logging", "threading", "subprocess", "multiprocessing", "asyncio", "socket", "random"}
IMPURE_CALLS = {"open", "print", "input"}
CLOCK_READERS = {"now", "today", "utcnow"}
READS_CLOCKS = {"clock"}

SUPERVISES = {"endpoint", "scrape"}
"""Modules whose threads must outlive any error: only there may one handler catch everything, and it counts."""

NAMELESS = {"utils", "util", "helpers", "helper", "manager", "base", "common"}
MOST_LINES_A_FILE = 450
MOST_LINES_A_FUNCTION = 60
