"""What the repository keeps of every finished request.

`archive` writes and reads it, in the files that `atsbook.packing` makes; `reading` lets a study read it before it
computes; `audit` computes a random part again; `differences` says where two versions of a page differ.
"""
