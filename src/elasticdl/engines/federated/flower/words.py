"""What both ends of the two sockets call things; one end of each runs in a process of Flower's.

    aggregator's process  --PUSH, FORGET-->            server_app
                          <--NODES, ANSWER, FAILED, LOST--
    client_app            --TASK, JOIN-->              resident party
                          <--an answer--

Callers: `parties.py`, `server_app.py`, `client_app.py`, `resident.py`, `local.py`, and what
starts these.
"""

# Where the aggregator's and the party's process listen; what they start inherits it.
AGGREGATOR_SOCKET = "ELASTICDL_AGGREGATOR_SOCKET"
PARTY_SOCKET = "ELASTICDL_PARTY_SOCKET"
# Where Flower's own server of this machine listens; see `local.py`.
SOCKET = "ELASTICDL_FLOWER_SOCKET"

PUSH, FORGET = "push", "forget"
NODES, ANSWER, FAILED, LOST = "nodes", "answer", "failed", "lost"

# Kinds of messages, by Flower's words for them: a request of the aggregator's; what is your name?
TASK, JOIN = "train", "query"

# A fact of a question for the name: another party has it, and this one is asked nothing.
TAKEN = "taken"

# The only fact of an answer that is none: why.
UNANSWERED = "unanswered"
