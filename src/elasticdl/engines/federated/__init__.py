"""Federated engine: trains one model with parties that keep their own data.

    server/aggregator.py       rounds: send requests, combine the parties' updates, publish
    server/client_registry.py  which parties take part, and which have replied
         |  RoundRequest, Reply (protocol/messages.py), checked by server/replies.py,
         |  combined by strategies/fusions.py
    protocol/parties.py        interface to the parties: simulation/ or flower/ (other machines)
         |
    client/party.py            one party: its data, its trainer, its client state

Neither the aggregator nor a party depends on how messages are transported. The aggregator receives
weights, metrics and counts, never records.

training.py    a federated job: locks its output folder, runs the rounds, publishes the model
config/        YAML configs -> settings -> jobs; IBM FL's class names (`ibmfl_names.py`)
strategies/    fusions, server optimizers, central differential privacy; without side effects
protocol/      messages and their fields; encoding of arrays for sockets
server/        the aggregator; backoff for parties that did not reply
client/        a party; its client state, its metrics file, redaction of its errors
control/       user commands to a running aggregator or party: socket, commands, status
simulation/    all parties on one machine; partitions of one data set for them
flower/        parties on other machines, connected through Flower
"""
