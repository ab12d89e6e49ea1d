"""What a client does (prepare images, train, defend, answer), and what the server sees of it.

`prepare` turns pixels into what a network sees; `training` trains; `defenses` act on the images, inside the network
or on what is shared; `threat` makes `Observed`, all that an attack is given, and `updates` does where a client
trains on its images first. To add a defense: one function and its
entry in `defenses.DEFENSES`, or one subclass of `Defense`.
"""
