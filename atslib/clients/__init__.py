"""What a client does (prepare images, train, defend, answer), and what the server sees of it.

`prepare` turns pixels into what a network sees; `training` trains; `defenses` act on the images,
inside the network or on what is shared: `perturbations` of the gradient, `published` ones of other
papers, with an `accountant` for what DP-SGD guarantees. `observe` makes `Observed`, all that an
attack is given, and `updates` does where a client trains on its images first; `view` says what it
holds; `sums` is what secure aggregation leaves; `records` is a round that a server has kept, and
`record_files` how that lies on disk. To add a defense: one function and its entry in
`perturbations.DEFENSES`, or one subclass of `Defense`.
"""
