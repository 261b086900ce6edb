"""`python -m dledger_admin` is the `dledger` command."""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 -- says so in one line instead of a syntax error
    sys.exit("dledger: Python %d.%d is too old, at least 3.11 is needed" % sys.version_info[:2])  # noqa: UP031 -- old ones too

from .cli import main

main()
