"""Gradients of many independent problems at once, and distances between them.

`problems` is the door: gradients by problem, in the fast form where the network allows it, else by
`torch.func.vmap`, which is also the readable reference. `routes` finds out which form is right for a
network, `layers` stands in for layers that torch cannot differentiate twice. `inputs` says what is
wrong with a network or its images. `per_example` and `products` are the fast form; `cpu` keeps
cores busy and `chunks` splits work that does not fit in memory. To add a distance: one function and
its entry in `problems.DISTANCES`.
"""
