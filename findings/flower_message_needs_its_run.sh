#!/usr/bin/env bash
# Flower: outside its runtime a ServerApp of today's form cannot make a Message, one of the old form can.
#
# Versions: flwr 1.42.0 (the same with 1.41.0)
# Guess: Message(content, dst_node_id=1, message_type="train") makes a message anywhere, as a data
#   class would; a server's main function could then be tested without a runtime.
# Behaviour: it asks an identity of the whole process for the run's number, which nobody has set: a
#   RuntimeError that names neither Message nor a way out. Calling a ServerApp with @app.main(), with
#   a context that has that number, does not set it. Calling one with server=... does, from the grid,
#   and messages can be made in that process ever after.
# Source: flwr/app/message/message.py, flwr/server/compat/app.py, flwr/supercore/task_identity.py.
# Output seen:
#   flwr 1.42.0
#   plain: RuntimeError: TaskIdentity.run_id is not set.
#   in @app.main(): RuntimeError: TaskIdentity.run_id is not set.
#   in the server of ServerApp(server=...): made
#   afterwards: made
set -euo pipefail
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
if [ -n "${FINDINGS_VENV:-}" ]; then
    python=$FINDINGS_VENV/bin/python
else
    python3 -m venv venv
    venv/bin/pip install --quiet --disable-pip-version-check flwr==1.42.0
    python=$tmp/venv/bin/python
fi
"$python" -I - <<'PY'
import logging

import flwr
from flwr.app import Context, Message, RecordDict
from flwr.server import History, ServerConfig, SimpleClientManager
from flwr.serverapp import ServerApp

print("flwr", flwr.__version__)
logging.getLogger("flwr").setLevel(logging.ERROR)


def tried(where):
    try:
        Message(RecordDict(), dst_node_id=1, message_type="train")
    except Exception as error:
        print(f"{where}: {type(error).__name__}: {error}")
        return False
    print(f"{where}: made")
    return True


class Grid:
    """What an app asks of its grid before the server begins."""

    class run:
        run_id = 7

    def get_node_ids(self):
        return []


class Own:
    """A server of the old form, which sends nothing."""

    def fit(self, num_rounds, timeout):
        assert tried("in the server of ServerApp(server=...)")
        return History(), 0.0

    def client_manager(self):
        return SimpleClientManager()

    def disconnect_all_clients(self, timeout):
        pass


context = Context(run_id=7, node_id=0, node_config={}, state=RecordDict(), run_config={})
assert not tried("plain")
app = ServerApp()


@app.main()
def main(grid, context):
    assert not tried("in @app.main()")


app(Grid(), context)
ServerApp(server=Own(), config=ServerConfig(num_rounds=1))(Grid(), context)
assert tried("afterwards")
PY
