"""`python -m dledger_sim.brokers`: the log alone, and brokers."""

from dledger_sim.log.cli import command

if __name__ == "__main__":
    command("dledger_sim.brokers", "dledger_sim.brokers.lab")()
