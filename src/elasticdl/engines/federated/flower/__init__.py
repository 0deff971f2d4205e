"""All that knows Flower: its processes, its two apps, keys, and the one port that is open.

    aggregator's machine                                     a party's machine
    Exchange --socket-- server_app                           client_app --socket-- Resident
       |                   |                                     |
       |            flower-superlink <--- front <===== flower-supernode
       |            (on a unix socket)              (on another)
       '--- starts and ends all of them     (TLS, fleet routes only)

Flower carries messages and nothing else. Rounds are counted by a process of ours that is no child
of Flower's, and models are trained by one that stays; what runs inside Flower only passes on. So a
killed part of Flower's costs a few seconds and no training, and frameworks are imported once.

parties.py     requests and answers, as the aggregator asks for them
exchange.py    the same as arrays and facts; keeps a ServerApp running
membership.py  which connection is which party                                     (pure)
superlink.py   the aggregator's processes of Flower
front.py       the only port that is reachable from outside
same_user.py   without keys: serves no other user
local.py       Flower's commands on unix sockets, which other users cannot reach
supernode.py   a party's processes of Flower, and why it is not let in
resident.py    a party's own end
messenger.py   what is forked for each message; errand.py asks it to
guard.py       no code that came over the network runs
server_app.py  inside Flower, at the aggregator
client_app.py  inside Flower, at a party
records.py     arrays and facts in Flower's records; on a socket they are `../wire.py`'s
words.py       what both ends of a socket call things
fab.py         the app that Flower is given                                        (pure)
keys.py        certificates and node keys
commands.py    Flower's commands as child processes; keeper.py ends them with us

Relied on of Flower 1.41: its public Python names, its commands with `--format json`, its
documented variables, that a supernode starts `flwr-clientapp` by this name, the fleet routes, and
the three names that `local.py` replaces.
All of it is tested with real processes in `tests/engines/federated/flower/`.
"""
