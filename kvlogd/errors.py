"""What can go wrong, and what to do about it: every error names what happened, where, and the mend."""


class KvlogdError(Exception):
    """An error that a person can act on. Printed as one line, `what: where: mend`; never as a traceback."""

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.mend = mend

    def __str__(self) -> str:
        return ": ".join(part for part in (self.where, self.what, self.mend) if part)


class ConfigError(KvlogdError):
    """The config file, a rule file or an option is wrong (exit status 2)."""


class SourceError(KvlogdError):
    """A log cannot be read (exit status 2, after everything else has been read)."""


class StoreError(KvlogdError):
    """The store cannot be opened, written or queried (exit status 2)."""
