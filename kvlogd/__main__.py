"""`python -m kvlogd` is `kvlogd`."""

from kvlogd.cli import main

raise SystemExit(main())
