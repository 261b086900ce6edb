"""Known bugs of the pipeline, and stories on a made-up cluster that fail with them.

`mutants` lists the bugs, `stories` the tests that catch them. This needs PySpark, unlike the rest of the simulation.
`python -m dledger_sim.spark` tries all bugs, and so does `make mutants`.
"""
