"""The 50 image operations of the paper, and policies made of them.

`operations` applies one operation, equal to Pillow bit for bit; `policy` holds `Policy`, `Hybrid`,
sampling, enumeration and files; `draws` keeps what was drawn for images; `differentiable` applies
operations to floats so that a gradient flows through them. To add an operation: one entry in
`operations.OPS` and, for a new kind, one kernel in each of the two.
"""
