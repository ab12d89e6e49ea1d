"""Kept runs: pieces of work, the store they lie in, computing many side by side, and the archive of
evidence.

A notebook asks `study` for what it needs, which `evidence` lets read what ships with the repository.
`settings` has the profiles. What is done to a photograph
is in `atsbook.experiment`, and what every request has in `atsbook.kept`; beside them, `outcomes` looks
at what attacks recovered in other ways, `batches` attacks several images a gradient, `gradients` says
what gradients tell without an attack, `sweep` attacks and scores every policy, `collaborative` has
federations, `scoring` the scores and the search, `layers` looks into an attack layer by layer, and
`timing` takes the time of a client's work.

`tables` makes rows of results; `table1` names the blocks of the paper's Table 1, their policies and
published rows; `regimes` counts the steps of a training; `defended` says what an attack tells of images
before a policy; `adaptive` names servers that know a policy. `archive` keeps results in the repository as
the files that `packing` makes of them.

`schedule` computes requests where `workers` are, `audit` repeats a part of the archive, `shown` says
where two versions of a page differ.

`estimate` says how long work takes.
"""
