#!/usr/bin/env bash
# Three parties that keep their digits, each with mostly a few of them. All run on this machine.
#
#   bash examples/federated.sh
set -euo pipefail

elasticdl data sample digits --output=demo/data
if [ ! -d demo/hospitals ]; then
  elasticdl federated init demo/hospitals --model_zoo=examples --model_def=mnist_torch \
    --data=demo/data/train --validation_data=demo/data/test \
    --num_parties=3 --split=dirichlet --alpha=0.5 --fusion=fedprox --num_rounds=4
fi
elasticdl federated simulate demo/hospitals/aggregator.yml
elasticdl evaluate --trained_model=demo/hospitals/trained_model --data=demo/data/test

# On three machines: see docs/guides/federated.md.
#   elasticdl federated party demo/hospitals/party0.yml
#   elasticdl federated aggregator demo/hospitals/aggregator.yml
