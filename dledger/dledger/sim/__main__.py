"""`python -m dledger.sim`: the log alone."""

from dledger.sim.cli import command

if __name__ == "__main__":
    command("dledger.sim", "dledger.sim.lab")()
