"""`python -m dledger_sim.log`: the log alone."""

from dledger_sim.log.cli import command

if __name__ == "__main__":
    command("dledger_sim.log", "dledger_sim.log.lab")()
