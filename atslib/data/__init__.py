"""Images with labels, from any source, as `Images`.

`images` is that type and the table of data sets; `load` finds a data set by name; `packed`,
`official` and `folder` read packed files, official downloads and a user's own folder; `shapes`
draws a stand-in that needs no file. To add a data set from outside: one entry in `load.DATASETS`;
to add one here: one entry in `images.KINDS` and one in `load.NORMALIZATION`; to add a source: one
file like `folder`.
"""
