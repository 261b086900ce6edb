"""`python -m dledger_admin` is the `dledger` command."""

from .cli import main

main()
