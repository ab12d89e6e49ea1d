"""What tests of federations need: a small one, its clients' answers as they travel, and the nodes that
Flower's server sees.
"""

from atsfed import Federation, Tap, answer
from atslib.gradients.problems import unflatten

SMALL = Federation(dataset="shapes", model="lenet-4", clients=10, fraction=0.02)


class Nodes:
    """A connection of Flower's server to nodes of consecutive numbers."""

    def __init__(self, first=100, count=10):
        self.ids = list(range(first, first + count))

    def get_node_ids(self):
        return self.ids


def shared(seen, model):
    """An update by parameter, as it travels."""
    rows = unflatten(seen.updates[0].gradients, model)
    return {name: row[0] for (name, _), row in zip(model.named_parameters(), rows, strict=True)}


def sent_by(node, message):
    """The message as it comes from a node; Flower's server writes this, which no client can."""
    message.metadata._src_node_id = node
    return message


def replies(federation, model, change=None):
    """What Flower hands its strategy: an answer of every client, the last ones first, of node 100 +
    its number.
    """
    from flwr.app import Message, MetricRecord, RecordDict

    from atsfed import flower

    made = []
    for client in reversed(range(federation.clients)):
        seen = answer(federation, model, client, 1)
        tensors = shared(seen, model) if change is None else change(client, shared(seen, model))
        arrays = flower._record({name: value.numpy() for name, value in tensors.items()})
        numbers = MetricRecord({"num-examples": seen.threat.batch, "client": client})
        content = RecordDict({flower.ARRAYS: arrays, flower.NUMBERS: numbers})
        made.append(
            sent_by(100 + client, Message(content=content, dst_node_id=1, message_type="train"))
        )
    return made


def curious(folder):
    """A server of the ten clients of `SMALL`, which it has asked, with a tap in this folder."""
    from atsfed import flower

    made = flower.Curious(SMALL, Tap(folder, SMALL))
    made.weights = {
        name: value.detach().clone() for name, value in made.tap.network.named_parameters()
    }
    made.asked = set(Nodes().ids)
    return made
