"""Training together: clients that each keep their images, and a server that aggregates what they
share.

`shards` deals a data set out to clients; `federation` says what is trained and how, and what one
client answers in one round; `rounds` runs it in one process, `peers` without a server; `tap` keeps
what an honest-but-curious server sees, as `Observed`. `flower` runs it on Flower, `secure` so that
the server gets only the sum, `simulation` either of them on one machine, over a `local_grid` of
processes; `watch_flower` keeps what the server of somebody's own federation sees, as far as it was
`declared`, and `gate` attacks at the client what it is about to send: these need the extra
`atslib[federated]`. `command` is that of the shell. To add a way to deal, one function in `shards`.
"""

import os

from atsfed.declared import Declared
from atsfed.federation import Federation, answer
from atsfed.shards import dirichlet_shards, equal_shards
from atsfed.tap import Tap

os.environ.setdefault(
    "FLWR_TELEMETRY_ENABLED", "0"
)  # read when Flower is loaded; programs we start inherit it

__all__ = ["Declared", "Federation", "Tap", "answer", "dirichlet_shards", "equal_shards"]
