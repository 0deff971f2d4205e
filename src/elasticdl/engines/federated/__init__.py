"""Parties that keep their data train one model.

    aggregator.py   the rounds: ask, fuse, keep, tell
    attendance.py   which parties take part: they join, are asked, waited for and judged
         |  Request, Reply (messages.py), judged by replies.py, fused by aggregation.py
    parties.py      who can be asked: here (simulate.py), elsewhere (flower/)
         |
    party.py        one party: its data, its trainer, its memory

Neither side knows how questions travel, and the aggregator sees arrays and counts, never records.

memory.py         what a party remembers, and which model it has
control.py        the socket by which a process is told something, both ends
verbs.py          what an aggregator does then; party_verbs.py: a party
telling.py        which process a config is about, and telling it
status.py         how they stand and what models score, as values
saving.py         a model written where somebody says
wire.py           arrays and facts on a socket between two processes of one machine
training.py       a federated job from the claim on its output to its TrainedModel
data_handlers.py  a party's own code that reads its data
jobs.py           what configs ask for, as jobs
init.py           a federation to start from: records dealt out, configs written
init_session.py   the same for the components of a session, which read folders
aggregation.py  fusions: parties' weights -> the next global weights          (pure)
updates.py      what a party has come to, and how updates are added up         (pure)
averages.py     fusions that are means                                         (pure)
server_steps.py fusions that make a step of the server's own                   (pure)
robust.py       fusions that stay in the middle, whoever lies                  (pure)
selection.py    fusions that choose parties                                    (pure)
messages.py     what an aggregator asks, and what a party answers              (pure)
message_fields.py  what a field of a message can be                         (pure)
replies.py      whether an answer can be used, and why not                     (pure)
redaction.py    what of an error's text may leave a party                      (pure)
splits.py       one data set dealt to parties: iid, Dirichlet, shards, by size (pure)
names.py        class names of IBM FL's configs -> ours
sections.py     one section of a config, read key by key
config.py       the config of an aggregator, and of a party
config_parts.py   sections that both have
component_parts.py  sections that name the components of a session
hyperparams.py    the sections `fusion` and `hyperparams`
settings.py       what a config says, as values                               (pure)
"""
