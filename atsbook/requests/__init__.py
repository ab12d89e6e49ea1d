"""Kinds of requests beside the attack on single images, which is `atsbook.experiment`.

`outcomes` looks at what attacks recovered in other ways, `scoring` has the scores and the search, `batches` attacks
several images a gradient, `gradients` says what gradients tell without an attack. Of one page each: `sweep` attacks and
scores every policy, `collaborative` has federations, `layers` looks into an attack layer by layer, `timing` takes the
time of a client's work. To add one: a class of `atsbook.kept.Kept`, or a function of a notebook (`Study.call`).
"""
