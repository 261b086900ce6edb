"""`python -m dledger_broker.sim`: the log alone, and brokers."""

from dledger.sim.cli import command

if __name__ == "__main__":
    command("dledger_broker.sim", "dledger_broker.sim.lab")()
