"""Names of messages and environment variables for the sockets between our processes and Flower's.

    aggregator's process  --PUSH, FORGET-->            server_app
                          <--NODES, ANSWER, FAILED, LOST--
    client_app            --TASK, JOIN-->              ClientDaemon
                          <--an answer--

`server_app.py` describes the first six. TASK is a request of the aggregator, and JOIN a request for
the party's name.

Callers: `parties.py`, `server_app.py`, `client_app.py`, `client_daemon.py`,
`unix_socket.py`, and the modules that start them.
"""

# Variables with the sockets of the aggregator's and the party's process; their children inherit
# these.
AGGREGATOR_SOCKET = "ELASTICDL_AGGREGATOR_SOCKET"
PARTY_SOCKET = "ELASTICDL_PARTY_SOCKET"
# Variable with the socket of Flower's own server on this machine; see `unix_socket.py`.
SOCKET = "ELASTICDL_FLOWER_SOCKET"

PUSH, FORGET = "push", "forget"
NODES, ANSWER, FAILED, LOST = "nodes", "answer", "failed", "lost"

# Kinds of messages, by Flower's names: a request of the aggregator; a request for the party's name.
TASK, JOIN = "train", "query"

# A field of a request for the name: another party has this name, so this one gets no requests.
TAKEN = "taken"

# The only field of a missing answer: the reason.
UNANSWERED = "unanswered"
