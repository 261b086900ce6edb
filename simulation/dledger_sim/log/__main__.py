"""Command line of the simulation of the log alone: `python -m dledger_sim.log`."""

from dledger_sim.log.cli import command

if __name__ == "__main__":
    command("dledger_sim.log", "dledger_sim.log.lab")()
