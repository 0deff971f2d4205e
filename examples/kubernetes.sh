#!/usr/bin/env bash
# A job for Kubernetes, written as a manifest: no cluster is needed to look at it.
#
#   bash examples/kubernetes.sh
#
# To submit it, leave out --manifest, or pipe the manifest to `kubectl apply -f -`. The image holds
# the model files; without --image, `elasticdl train` builds and pushes it.
set -euo pipefail

mkdir -p demo
elasticdl train --cluster=kubernetes --namespace=team --image=registry.example.com/team/digits:1 \
  --model_def=mnist --data=s3://team/digits/train --num_epochs=5 --output=s3://team/models/digits \
  --num_workers=2..4 --manifest > demo/rayjob.yaml
grep --extended-regexp '^kind|image:|minReplicas|maxReplicas' demo/rayjob.yaml
