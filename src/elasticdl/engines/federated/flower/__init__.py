"""Flower integration: connects the aggregator with parties on other machines.

    aggregator's machine                                     a party's machine
    Exchange --socket-- server_app                           client_app --socket-- ClientDaemon
       |                   |                                     |
       |            flower-superlink <- tls_proxy <=== flower-supernode
       |            (on a unix socket)              (on another)
       '--- starts and ends all of them     (TLS, fleet routes only)

The TLS proxy forwards only the routes that Flower calls "fleet", which parties need. Flower only
carries messages. The rounds run in our own process, which is not a child of Flower's, and models
are trained in a long-running process; the code inside Flower only forwards messages. If a Flower
process is killed, a few seconds are lost but no training. Frameworks are imported only once.

parties.py     sends the aggregator's requests to the parties, and receives their answers
exchange.py    sends them as arrays and JSON values; keeps a ServerApp running
membership.py  which Flower node belongs to which party; no I/O
superlink.py   Flower's processes at the aggregator
tls_proxy.py   the only port that is reachable from outside
same_user.py   if there are no keys: refuses processes of other users
unix_socket.py       Flower's commands on unix sockets, which other users cannot reach
supernode.py   Flower's processes at a party; explains why the aggregator refuses the party
certificate_check.py   whether the aggregator can be reached, and its TLS certificate
client_daemon.py   a party's own process
prefork_server.py  forks a process for each message, as requested by prefork_client.py
app_allow_list.py  prevents running code that was received over the network
server_app.py  inside Flower, at the aggregator
client_app.py  inside Flower, at a party
records.py     arrays and JSON values in Flower's records (on sockets: `protocol/wire.py`)
protocol_constants.py  names that both ends of a socket use
flower_app.py  the app that Flower runs, which has no code of its own
keys.py        certificates and node keys
commands.py    Flower's commands as child processes; supervisor.py ends them with their parent

We rely on these parts of Flower 1.41: its public Python names, its commands with `--format json`,
its documented environment variables, that a supernode starts `flwr-clientapp` by this name, the
fleet routes, and the three names that `unix_socket.py` replaces.
All of them are tested with real processes in `tests/engines/federated/flower/`.
"""
