"""Command line of the simulation of brokers and of the log alone: `python -m dledger_sim.brokers`."""

from dledger_sim.log.cli import command

if __name__ == "__main__":
    command("dledger_sim.brokers", "dledger_sim.brokers.lab")()
