"""Kept runs: pieces of work, the store they lie in, computing many side by side, and the archive of
evidence.

A notebook asks `study` for what it needs. `settings` resolves a profile; `networks`, `attacks`,
`batches` (attacks on several images a gradient, and labels told from them), `gradients` (what they
tell without an attack), `sweep` (attacks on every policy, and scores), `collaborative` (federations)
and `scoring` make artifacts, `outcomes` says what an attack's images tell of the photographs,
`layers` looks into an attack layer by layer, `archive` keeps them in
the repository as the files that `packing` makes of them, `tables` reads them, `table1` names the
blocks of the paper's Table 1, their policies and published rows, `regimes` counts the steps of a training,
`defended` says what an attack tells of images before a policy, `adaptive` names servers that know a
policy, `attackers` the data set whose images an attacker has, and `timing` takes the time of a
client's work. To add a kind of unit: one frozen dataclass that is a `networks.Unit`.

`schedule` computes units where `workers` are, `audit` repeats a part of the archive, `shown` says
where two versions of a page differ.

`estimate` says how long work takes, `store` keeps its results, and `faults` says which are damaged.
"""
