"""`dledger chaos`: the commands of the component of that name, which lies above this one."""

from __future__ import annotations

import importlib

import click

chaos: click.Group = importlib.import_module("dledger_chaos.cli").chaos
